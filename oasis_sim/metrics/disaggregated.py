"""The summary of a disaggregated run: that of every run, and what passes between nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from oasis_sim.cluster.plan import PARTIAL
from oasis_sim.cluster.result import ClusterResult
from oasis_sim.metrics.distribution import distribution, significant
from oasis_sim.metrics.summary import duration_ps, summarise
from oasis_sim.metrics.tables import Table, requests_table, steps_table
from oasis_sim.units import GB, PS_PER_MS, PS_PER_S


def summarise_cluster(result: ClusterResult) -> dict[str, Any]:
    """Fold a disaggregated run into the mapping of `summary.json`.

    The keys are those of every run. Steps, PCIe, HBM and host are those of decode nodes (rates per
    node, sums over nodes where a key says so); `links.network` is the whole network,
    `tiers.remote` the prefill nodes' memory, `disaggregation` what only such runs have.
    """
    summary = summarise(result.run)
    cluster, span = result.cluster, duration_ps(result.run)
    gpus = cluster.nodes * result.run.scenario.tp
    summary["scenario"] |= {
        "prefill_nodes": cluster.prefill,
        "decode_nodes": cluster.decode,
        "network": cluster.network.name,
        "transfer": cluster.transfer,
        "prefix_hits": cluster.prefix_hits,
        "remote_bytes": cluster.remote_bytes,
        "transfers_at_once": cluster.at_once,
        "faults": " ".join(cluster.faults.texts) or None,
    }
    throughput = summary["throughput"]
    tokens = throughput["output_tokens"]
    throughput["gpus"] = gpus
    throughput["output_tokens_per_s_per_gpu"] = _per_second(tokens, span * gpus)
    summary["links"]["network"] = _network(result, span)
    host = summary["tiers"]["host"]
    host |= _decode_host(result)
    summary["tiers"]["remote"] = {
        "capacity_bytes": cluster.prefill * cluster.remote_bytes,
        "weights_bytes": 0,
        "peak_bytes": result.staging.peak,
        "mean_bytes": round(result.staging.mean),
        "node_capacity_bytes": cluster.remote_bytes,
        "node_peak_bytes": result.staging.node_peak,
    }
    summary["disaggregation"] = _between(result, span)
    return summary


def _per_second(amount: float, span_ps: int) -> float | None:
    return significant(amount * PS_PER_S / span_ps) if span_ps > 0 else None


def _network(result: ClusterResult, span: int) -> dict[str, Any]:
    """Return what the network carried against what all decode nodes can receive at once."""
    network, total = result.cluster.network, result.network_bytes
    nominal = result.cluster.decode * network.rails * network.rail_bytes_per_s
    limit = nominal * network.efficiency.at(network.coalesce_bytes)
    rate = _per_second(total, span)
    bins = result.timeline.network_bytes
    peak = bins.max(initial=0.0) * PS_PER_S / max(min(result.timeline.bin_ps, span), 1)
    return {
        "bytes_per_step_mean": significant(total / max(result.run.totals.count, 1)),
        "gb_per_s_mean": None if rate is None else significant(rate / GB),
        "gb_per_s_peak": significant(peak / GB),
        "utilisation": None if rate is None else significant(rate / limit),
        "limit_gb_per_s": significant(limit / GB),
        "nominal_gb_per_s": significant(nominal / GB),
        "bytes_total": total,
        "hand_over_bytes": result.hand_over_bytes,
        "fetched_bytes": result.fetched_bytes,
        "vain_bytes": result.vain_bytes,
    }


def _decode_host(result: ClusterResult) -> dict[str, Any]:
    """Return what the host memory of decode nodes held; with partial fetching less per request."""
    held, moves = result.decode_host, result.hand_overs
    found: dict[str, Any] = {
        "mean_bytes_all_nodes": round(held.mean),
        "peak_bytes_all_nodes": held.peak,
        "bytes_per_request_mean": _mean_per(held.mean, result.resident_mean),
    }
    if result.cluster.transfer == PARTIAL:
        memory, workload = result.run.memory, result.run.scenario.workload
        tokens = int((workload.prompt_tokens + workload.output_tokens).max())
        written = memory.host_request_bytes * int(workload.output_tokens.max()) // tokens
        most = int((moves.union_bytes + moves.fetched_bytes).max(initial=0)) + written
        found |= {
            "request_bytes": most,
            "requests_that_fit": memory.host_capacity_bytes // most,
        }
    return found


def _mean_per(amount: float, among: float) -> float | None:
    return significant(amount / among) if among > 0 else None


def _between(result: ClusterResult, span: int) -> dict[str, Any]:
    cluster, moves = result.cluster, result.hand_overs
    sent = moves.ready_ps >= 0
    count = int(np.count_nonzero(sent))
    return {
        "prefill_nodes": cluster.prefill,
        "decode_nodes": cluster.decode,
        "network": cluster.network.name,
        "transfer": cluster.transfer,
        "prefix_hits": cluster.prefix_hits,
        "resident_requests_mean": significant(result.resident_mean),
        "hand_over_bytes_mean": _mean_of(moves.union_bytes[sent]),
        "gpu_to_gpu_bytes_mean": _mean_of(moves.gpu_bytes[sent]),
        "drift_bytes_mean": _mean_of(moves.fetched_bytes[sent]),
        "prefill_utilisation": _mean_per(result.prefill_busy_ps, span * cluster.prefill),
        "ttft_parts_ms": _ttft_parts(result),
        "handed_over": count,
        "faults": {
            "stalled_s": significant(result.stalled_ps / PS_PER_S),
            "restarted_requests": int(np.count_nonzero(moves.recomputed_tokens)),
            "recomputed_tokens": int(moves.recomputed_tokens.sum()),
            "resent_bytes": int(moves.resent_bytes.sum()),
        },
    }


def _ttft_parts(result: ClusterResult) -> dict[str, Any]:
    """Return what the first token waited for, over all requests that were prefilled.

    A request whose last prefill gave all its tokens was not handed over: room and network are 0.
    """
    moves, arrival = result.hand_overs, result.run.requests.arrival_ps
    done = moves.prefill_end_ps >= 0
    sent = (moves.ready_ps >= 0) & (moves.sent_ps >= moves.prefill_end_ps)
    parts = {
        "queue": moves.prefill_start_ps - arrival,
        "prefill": moves.prefill_end_ps - moves.prefill_start_ps,
        "room": np.where(sent, moves.sent_ps - moves.prefill_end_ps, 0),
        "network": np.where(sent, moves.ready_ps - moves.sent_ps, 0),
    }
    return {name: distribution(part[done]).scaled(PS_PER_MS) for name, part in parts.items()}


def _mean_of(values: npt.NDArray[np.int64]) -> float | None:
    return significant(int(values.sum()) / len(values)) if len(values) else None


def cluster_steps_table(result: ClusterResult) -> Table:
    """Return one row per step that was kept of any decode node, in the order of their ends."""
    table = steps_table(result.run.steps)
    return Table((("decode_node", result.node.tolist()), *table.columns))


def cluster_requests_table(result: ClusterResult) -> Table:
    """Return one row per request: that of every run, and its way over the nodes."""
    names = (
        "prefill_node",
        "decode_node",
        "prefill_start_ps",
        "prefill_end_ps",
        "sent_ps",
        "ready_ps",
        "union_bytes",
        "gpu_bytes",
        "fetched_bytes",
        "recomputed_tokens",
        "resent_bytes",
    )
    columns = [
        (name, [None if v < 0 else v for v in getattr(result.hand_overs, name).tolist()])
        for name in names
    ]
    return Table((*requests_table(result.run.requests).columns, *columns))


def timeline_table(result: ClusterResult) -> Table:
    """Return what was sent and held, one row per bin: sums over all nodes of a kind, in bytes."""
    line = result.timeline
    return Table(
        (
            ("start_ps", [i * line.bin_ps for i in range(len(line.network_bytes))]),
            ("network_bytes", np.rint(line.network_bytes).astype(np.int64).tolist()),
            ("decode_host_bytes", np.rint(line.decode_host_bytes).astype(np.int64).tolist()),
            ("staging_bytes", np.rint(line.staging_bytes).astype(np.int64).tolist()),
            ("resident_requests", [significant(v) for v in line.resident.tolist()]),
        )
    )
