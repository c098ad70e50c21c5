"""What holds a replica or its nodes back, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oasis_sim.plan.fleet import Fleet
from oasis_sim.plan.probe import DECODE_PACE, Probe
from oasis_sim.report.numbers import gibibytes, milliseconds, percent
from oasis_sim.report.why import limits_of

PARTS = {
    "queue": "the queue for prefill",
    "prefill": "prefill",
    "room": "waiting for room or a turn on a decode node",
    "network": "the network",
}


def binding(probe: Probe) -> str:
    """Return what holds a replica back: its batch where requests wait, else its steps."""
    limits, nodes = limits_of(probe.summary), probe.summary.get("disaggregation")
    paced = probe.lacks_decode_nodes or (probe.met and probe.tightest.target.metric in DECODE_PACE)
    if nodes is not None and not paced:
        return _before_decode(probe, nodes)
    waits = not probe.keeps_up or probe.tightest.target.metric == "ttft"
    if waits and limits["batch"] in ("hbm", "host") and _is_full(probe):
        return str(limits["batch_why"])
    return str(limits["time_why"])


def _before_decode(probe: Probe, nodes: Mapping[str, Any]) -> str:
    """Return what the first token waits for: prefill nodes where they do not keep up, or most."""
    means = {name: each["mean"] or 0.0 for name, each in nodes["ttft_parts_ms"].items()}
    longest = max(means, key=lambda name: means[name])
    part = longest if probe.keeps_up else "queue"
    busy = percent(nodes["prefill_utilisation"])
    text = (
        f"{PARTS[part]} takes {milliseconds(means[part])} of {milliseconds(sum(means.values()))} "
        f"to the first token; prefill nodes are busy {busy} of the time"
    )
    remote = probe.summary["tiers"]["remote"]
    peak, capacity = remote["node_peak_bytes"], remote["node_capacity_bytes"]
    if _nearly(peak, capacity):
        text += f", and the host memory of one is full ({gibibytes(peak)} of {gibibytes(capacity)})"
    return text


def _nearly(peak: float, capacity: float) -> bool:
    """Tell whether a memory was filled to nine tenths."""
    return peak >= 0.9 * capacity > 0


def _is_full(probe: Probe) -> bool:
    """Tell whether a memory tier of a replica was nearly filled."""
    tiers = probe.summary["tiers"]
    hbm, host = tiers["hbm"], tiers["host"]
    return _nearly(hbm["peak_kv_bytes"], hbm["kv_pool_bytes"]) or _nearly(
        host["peak_bytes"], host["capacity_bytes"]
    )


def bindings(fleet: Fleet) -> str:
    """Return what holds a fleet back where one replica or node fewer fails, else as it is."""
    probes = [each.probe for each in fleet.fewer if not each.probe.failure] or [fleet.meets]
    return "; ".join(dict.fromkeys(binding(probe) for probe in probes))
