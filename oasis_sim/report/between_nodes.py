"""What the result table says about prefill nodes, decode nodes and the network between them."""

from __future__ import annotations

from oasis_sim.report.numbers import count, counted, gibibytes, milliseconds, number, percent, rate
from oasis_sim.report.row import Row, Summary


def cluster_text(summary: Summary) -> str:
    """Name the nodes of a disaggregated run; nothing for others."""
    nodes = summary.get("disaggregation")
    if nodes is None:
        return ""
    both = nodes_text(nodes["prefill_nodes"], nodes["decode_nodes"])
    return f"; {both} on {nodes['network']}, {nodes['transfer']} transfer"


def nodes_text(prefill: int, decode: int) -> str:
    """Return numbers of nodes in words."""
    return f"{counted(prefill, 'prefill node')} and {counted(decode, 'decode node')}"


def between_nodes(summary: Summary) -> tuple[Row, ...]:
    """Return what passes between nodes; nothing for runs on one node."""
    nodes = summary.get("disaggregation")
    if nodes is None:
        return ()
    network, remote = summary["links"]["network"], summary["tiers"]["remote"]
    host = summary["tiers"]["host"]
    parts = nodes["ttft_parts_ms"]
    detail = ", ".join(f"{name} {milliseconds(part['mean'])}" for name, part in parts.items())
    rows = [
        Row(
            "Network",
            rate(network["gb_per_s_mean"], "GB/s"),
            f"peak {number(network['gb_per_s_peak'])}; {percent(network['utilisation'])} of "
            f"{number(network['limit_gb_per_s'])} GB/s (nominal "
            f"{number(network['nominal_gb_per_s'])})",
        ),
        Row(
            "Handed over",
            gibibytes(nodes["hand_over_bytes_mean"]),
            f"of KV per request from host to host; beside it "
            f"{gibibytes(nodes['gpu_to_gpu_bytes_mean'])} GPU to GPU and "
            f"{gibibytes(nodes['drift_bytes_mean'])} fetched later (drift)"
            if nodes["handed_over"]
            else "nothing: prefill gave every request all its tokens",
        ),
        Row("TTFT, of which", milliseconds(summary["latency"]["ttft_ms"]["mean"]), detail),
        Row(
            "Prefill nodes",
            percent(nodes["prefill_utilisation"]),
            f"busy; keep {gibibytes(remote['mean_bytes'])} of KV for others, at most "
            f"{gibibytes(remote['node_peak_bytes'])} of {gibibytes(remote['node_capacity_bytes'])} "
            "on one node",
        ),
    ]
    if summary["scenario"]["offload"]:
        rows.append(
            Row(
                "Decode hosts",
                gibibytes(host["mean_bytes_all_nodes"]),
                "of KV, all nodes together, in flight too; peak "
                f"{gibibytes(host['peak_bytes_all_nodes'])}, growth read now and then (host at "
                "peak above: what decodes on the fullest node, every step); "
                f"{gibibytes(host['bytes_per_request_mean'])} per request, "
                f"{number(nodes['resident_requests_mean'])} resident",
            )
        )
    return (*rows, *_faults(summary))


def _faults(summary: Summary) -> tuple[Row, ...]:
    faults = summary["disaggregation"]["faults"]
    if not any(faults.values()):
        return ()
    return (
        Row(
            "Faults",
            f"{number(faults['stalled_s'])} s",
            f"of decode nodes standing still; {count(faults['restarted_requests'])} requests "
            f"started again, {count(faults['recomputed_tokens'])} tokens computed again, "
            f"{gibibytes(faults['resent_bytes'])} sent again",
        ),
    )
