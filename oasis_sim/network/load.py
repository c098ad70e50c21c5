"""Read a network profile from YAML: every number with its unit in words and its source."""

from __future__ import annotations

from pathlib import Path

from oasis_sim.curve import Curve
from oasis_sim.fileio import SourcedFields, find_input, load_yaml, read_curve
from oasis_sim.fileio.fields import Fields
from oasis_sim.network.profile import NetworkProfile
from oasis_sim.units import parse_bandwidth, parse_bytes, parse_time

ORIGINS = ("datasheet", "published", "measured")
MOST_NICS = 64
SMALLEST_SHARE = 1e-6
"""Far below any link; a share of zero would never end."""
BANDWIDTH = ("1 MB/s", "1 PB/s")
TIME = ("0 ps", "1 s")
DESCRIPTOR = ("1 B", "1 TB")
REMOTE = ("0 B", "1000 PB")


def load_network(name: str) -> NetworkProfile:
    """Return the network profile of a shipped name or a YAML file.

    Raises InputError that lists every mistake with its line.
    """
    return read_network(find_input(name, "network"))


def read_network(path: Path) -> NetworkProfile:
    """Read one network profile; see docs/networks.md for its keys."""
    top = Fields.of(load_yaml(path))
    top.integer("schema_version", low=1, high=1)
    sourced = SourcedFields(top)
    nic = sourced.child("nic")
    nics = sourced.integer("nics", 1, MOST_NICS)
    rails = sourced.integer("rails", 1, MOST_NICS)
    if rails > nics:
        top.mistake(("rails", "value"), f"exceeds the {nics} NICs", "lower it", None)
    profile = NetworkProfile(
        name=top.text("name"),
        title=top.text("title"),
        origin=top.text("origin", choices=ORIGINS),
        nics=nics,
        rails=rails,
        send_bytes_per_s=nic.quantity("send", parse_bandwidth, BANDWIDTH),
        receive_bytes_per_s=nic.quantity("receive", parse_bandwidth, BANDWIDTH),
        latency_ps=sourced.quantity("latency", parse_time, TIME),
        posting_ps=sourced.quantity("posting", parse_time, TIME),
        completion_ps=sourced.quantity("completion", parse_time, TIME),
        efficiency=_read_efficiency(sourced),
        coalesce_bytes=sourced.quantity("coalesce", parse_bytes, DESCRIPTOR),
        remote_bytes=sourced.quantity("remote_capacity", parse_bytes, REMOTE),
        sources=sourced.sources,
    )
    top.finish()
    return profile


def _read_efficiency(sourced: SourcedFields) -> Curve:
    fields = sourced.fields.child("efficiency")
    sourced.note("efficiency", fields)
    sizes = fields.quantities("bytes", parse_bytes, within=DESCRIPTOR)
    shares = fields.numbers("share", low=SMALLEST_SHARE, high=1.0)
    return read_curve(fields, "bytes", sizes, shares)
