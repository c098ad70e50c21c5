"""A network as the simulator sees it: NICs, what a descriptor costs, how well sizes use the link.

The time of one transfer that has the network for itself is

    latency + descriptors x posting + bytes / (efficiency(size) x rails x bandwidth) + completion

Posting is the initiator's work for each descriptor and does not occupy a NIC. The rest does, and
is what transfers share (`sharing`). Small descriptors cost twice: by posting, and by an efficiency
below that of large ones; `Transfer.coalesced` packs them before they are sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from oasis_sim.curve import Curve
from oasis_sim.units import PS_PER_S


@dataclass(frozen=True)
class Transfer:
    """Bytes that are sent together, in pieces (descriptors) that are contiguous at both ends."""

    descriptors: int
    total_bytes: int

    def __post_init__(self) -> None:
        if not 1 <= self.descriptors <= self.total_bytes:
            raise ValueError("a transfer has at least one descriptor, and a byte in each")

    @classmethod
    def of(cls, descriptors: int, unit_bytes: int) -> Transfer:
        """Return the transfer of descriptors of one size."""
        return cls(descriptors, descriptors * unit_bytes)

    @property
    def unit_bytes(self) -> float:
        """Return the mean size of a descriptor."""
        return self.total_bytes / self.descriptors

    def coalesced(self, limit_bytes: int) -> Transfer:
        """Return the same bytes, whole descriptors packed together up to `limit_bytes` each."""
        packed = max(1, limit_bytes * self.descriptors // self.total_bytes)
        return Transfer(-(-self.descriptors // packed), self.total_bytes)


@dataclass(frozen=True)
class NetworkProfile:
    """Hold one node's side of a network; all nodes are alike.

    Each of `nics` NICs sends and receives at once, at its own nominal rate per direction; one
    transfer is spread over `rails` of them. `efficiency` is the share of the nominal rate that
    descriptors of a size reach, posting apart. `posting_ps` is per descriptor, `latency_ps` and
    `completion_ps` (notification, polling) per transfer. `coalesce_bytes` is the size up to which
    small pieces are worth packing. `remote_bytes` of a node's memory may hold KV for others.
    `sources` maps the path of each number to where it comes from.
    """

    name: str
    title: str
    origin: str
    nics: int
    rails: int
    send_bytes_per_s: int
    receive_bytes_per_s: int
    latency_ps: int
    posting_ps: int
    completion_ps: int
    efficiency: Curve
    coalesce_bytes: int
    remote_bytes: int
    sources: Mapping[str, str]

    @property
    def rail_bytes_per_s(self) -> int:
        """Return the nominal rate of one rail between two nodes."""
        return min(self.send_bytes_per_s, self.receive_bytes_per_s)

    @property
    def node_bytes_per_s(self) -> int:
        """Return the nominal rate of all NICs of a node together, one direction."""
        return self.nics * self.rail_bytes_per_s

    def wire_bytes(self, transfer: Transfer) -> float:
        """Return the bytes that NICs at their nominal rate could send while busy with this."""
        return transfer.total_bytes / self.efficiency.at(transfer.unit_bytes)

    def posting_total_ps(self, transfer: Transfer) -> int:
        """Return what posting all descriptors takes."""
        return transfer.descriptors * self.posting_ps

    def flow_ps(self, transfer: Transfer) -> int:
        """Return the time of posting and sending, the network otherwise idle."""
        wire_ps = self.wire_bytes(transfer) * PS_PER_S / (self.rails * self.rail_bytes_per_s)
        return self.posting_total_ps(transfer) + round(wire_ps)

    def transfer_ps(self, transfer: Transfer) -> int:
        """Return the time from posting to completion, the network otherwise idle."""
        return self.latency_ps + self.flow_ps(transfer) + self.completion_ps

    def bytes_per_s(self, transfer: Transfer) -> float:
        """Return the rate of such transfers, each as large as it is, one after the other."""
        return transfer.total_bytes * PS_PER_S / self.transfer_ps(transfer)
