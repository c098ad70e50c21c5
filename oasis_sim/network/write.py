"""Write a network profile as YAML that `load_network` reads back, each number with its source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oasis_sim.fileio import dump_yaml
from oasis_sim.network.profile import NetworkProfile

SIGNIFICANT = 6


def network_yaml(network: NetworkProfile, header: Sequence[str]) -> str:
    """Return the text of a profile file; `header` lines become comments at the top."""
    sources = network.sources

    def sourced(value: Any, source: str) -> dict[str, Any]:
        return {"value": value, "source": sources[source]}

    curve = network.efficiency
    content = {
        "schema_version": 1,
        "name": network.name,
        "title": network.title,
        "origin": network.origin,
        "nics": sourced(network.nics, "nics"),
        "rails": sourced(network.rails, "rails"),
        "nic": {
            "send": sourced(f"{network.send_bytes_per_s} B/s", "nic.send"),
            "receive": sourced(f"{network.receive_bytes_per_s} B/s", "nic.receive"),
        },
        "latency": sourced(f"{network.latency_ps} ps", "latency"),
        "posting": sourced(f"{network.posting_ps} ps", "posting"),
        "completion": sourced(f"{network.completion_ps} ps", "completion"),
        "efficiency": {
            "bytes": [f"{round(size)} B" for size in curve.x],
            "share": [float(f"{share:.{SIGNIFICANT}g}") for share in curve.y],
            "source": sources["efficiency"],
        },
        "coalesce": sourced(f"{network.coalesce_bytes} B", "coalesce"),
        "remote_capacity": sourced(f"{network.remote_bytes} B", "remote_capacity"),
    }
    comments = "".join(f"# {line}\n" for line in header)
    return comments + dump_yaml(content)
