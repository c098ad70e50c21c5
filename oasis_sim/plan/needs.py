"""What a fleet takes of each capacity: memory of both tiers, links, power."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oasis_sim.plan.fleet import Fleet
from oasis_sim.report.numbers import NOTHING, count, gibibytes, number, percent

SECONDS_PER_HOUR = 3600
MILLION = 1_000_000
LINKS = {"pcie_h2d": "host to GPU", "pcie_d2h": "GPU to host", "network": "network"}


@dataclass(frozen=True)
class Load:
    """Hold the mean load of a link of one GPU and what the link can carry, GB/s."""

    title: str
    gb_per_s: float
    limit_gb_per_s: float | None
    utilisation: float | None

    def words(self) -> str:
        """Return the load in words."""
        limit = NOTHING if self.limit_gb_per_s is None else number(self.limit_gb_per_s)
        return f"{self.title} {number(self.gb_per_s)} of {limit} GB/s ({percent(self.utilisation)})"


def loads_of(fleet: Fleet) -> tuple[Load, ...]:
    """Return the load of each link that a replica uses."""
    links: Mapping[str, Any] = fleet.meets.summary["links"]
    return tuple(
        Load(
            title,
            float(links[name]["gb_per_s_mean"] or 0.0),
            links[name]["limit_gb_per_s"],
            links[name]["utilisation"],
        )
        for name, title in LINKS.items()
        if links.get(name)
    )


def memory_words(fleet: Fleet) -> str:
    """Return what a GPU takes of HBM and host memory, of each capacity as resolved."""
    tiers = fleet.meets.summary["tiers"]
    hbm, host = tiers["hbm"], tiers["host"]
    found = (
        f"HBM {gibibytes(hbm['peak_bytes'])} of {gibibytes(hbm['usable_bytes'])} usable "
        f"({gibibytes(hbm['capacity_bytes'])} in all), host memory {gibibytes(host['peak_bytes'])} "
        f"of {gibibytes(host['capacity_bytes'])}"
    )
    gpus = fleet.decode_gpus
    if host["peak_bytes"] and gpus > 1:
        found += f" ({gibibytes(host['peak_bytes'] * gpus)} for {count(gpus)} GPUs)"
    return found


def _between(fleet: Fleet) -> list[str]:
    """Return what prefill nodes keep for decode nodes, and what the network carries."""
    if fleet.spec.disaggregation is None:
        return []
    remote = fleet.meets.summary["tiers"]["remote"]
    network = next(load for load in loads_of(fleet) if load.title == LINKS["network"])
    return [
        f"prefill nodes keep at most {gibibytes(remote['node_peak_bytes'])} of KV each for decode "
        f"nodes, of {gibibytes(remote['node_capacity_bytes'])} of host memory",
        f"network, all nodes together, mean: {number(network.gb_per_s)} GB/s; decode nodes could "
        f"receive {number(network.limit_gb_per_s)}",
    ]


def energy_kwh_per_million_tokens(fleet: Fleet) -> float | None:
    """Return an upper bound of the GPUs' energy for a million output tokens, None if unknown.

    Every GPU of the fleet is taken to draw the board's full power all the time.
    """
    if fleet.gpu_power_w is None or fleet.output_tokens_per_s <= 0:
        return None
    seconds = MILLION / fleet.output_tokens_per_s
    return fleet.gpus * fleet.gpu_power_w * seconds / SECONDS_PER_HOUR / 1000


def needs(fleet: Fleet) -> list[str]:
    """Return sentences: memory, links and energy of a fleet."""
    per_gpu = "per GPU" if fleet.spec.disaggregation is None else "per decode GPU"
    found = [f"needs {per_gpu} at peak: {memory_words(fleet)}"]
    links = [load for load in loads_of(fleet) if load.title != LINKS["network"]]
    used = [load.words() for load in links if load.gb_per_s > 0]
    found.append(f"link load {per_gpu}, mean: {', '.join(used) if used else 'none'}")
    found += _between(fleet)
    energy = energy_kwh_per_million_tokens(fleet)
    if energy is not None and fleet.gpu_power_w is not None:
        found.append(
            f"energy: at most {number(energy)} kWh per million output tokens, every GPU at its "
            f"board's {number(fleet.gpu_power_w)} W all the time (GPUs only)"
        )
    return found
