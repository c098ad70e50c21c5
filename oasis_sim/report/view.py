"""What the result table says, as plain rows; `report.table` draws them.

Everything is read from the mapping of `summary.json`, so a finished run can be shown again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oasis_sim.metrics import SAMPLES_FOR_P99
from oasis_sim.report.numbers import count, gigabytes, milliseconds, number, percent, rate

Summary = Mapping[str, Any]
MARK = "*"


@dataclass(frozen=True)
class Row:
    """Hold one line: what, how much, and what it rests on."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Section:
    """Hold rows under a title (empty: no title line)."""

    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class View:
    """Hold a whole report: heading, warning about the data, sections, notes."""

    heading: str
    warning: str
    sections: tuple[Section, ...]
    notes: tuple[str, ...]


def view_of(summary: Summary) -> View:
    """Arrange a summary in the order in which a planner reads it."""
    sections = (
        Section("", _speed(summary)),
        Section("PCIe per GPU", _traffic(summary)),
        Section("Memory per GPU", _memory(summary)),
        Section("Working set, per KV head, layer and step", _working_set(summary)),
        Section("Quality proxies, read off the trace; not accuracy", _quality(summary)),
        Section("Requests", _requests(summary)),
    )
    return View(
        heading=_heading(summary),
        warning=_warning(summary),
        sections=tuple(section for section in sections if section.rows),
        notes=(*summary["notes"], *_p99_note(summary)),
    )


def _heading(summary: Summary) -> str:
    scenario = summary["scenario"]
    trace = scenario["trace"]
    gpus = f" x{scenario['tp']}" if scenario["tp"] > 1 else ""
    parts = (
        f"{scenario['scheme']} on {scenario['model']}",
        f"{scenario['profile']}{gpus}, engine {scenario['engine']}",
        f"context {count(scenario['context_tokens'])} + {count(scenario['output_tokens'])} tokens",
        f"{count(scenario['requests'])} requests, {_admission(scenario)}",
        f"trace {trace['name']} ({trace['origin']})" if trace["name"] else "no trace",
    )
    return "; ".join(parts)


def _admission(scenario: Mapping[str, Any]) -> str:
    if scenario["concurrency"] is None:
        return f"arriving over {number(scenario['workload']['span_s'])} s"
    return f"{count(scenario['concurrency'])} at once"


def _warning(summary: Summary) -> str:
    trace = summary["scenario"]["trace"]
    if trace["origin"] not in ("synthetic", "mixed"):
        return ""
    kind = "is SYNTHETIC" if trace["origin"] == "synthetic" else "is partly SYNTHETIC"
    return (
        f"The trace {trace['name']} {kind}: generated to match published statistics, not recorded "
        "from a model. Traffic, misses and proxies below rest on it."
    )


def _speed(summary: Summary) -> tuple[Row, ...]:
    throughput, steps, latency = summary["throughput"], summary["steps"], summary["latency"]
    bounds = summary["bounds"]
    batch = steps["running_batch"]
    return (
        Row(
            "Throughput",
            rate(throughput["output_tokens_per_s"], "tokens/s"),
            f"{rate(throughput['requests_per_s'], 'requests/s')}; "
            f"{rate(throughput['decode_output_tokens_per_s'], 'tokens/s')} in steps without "
            f"prefill; roofline {rate(bounds['output_tokens_per_s_upper'], 'tokens/s')}",
        ),
        Row("TPOT", *_spread(latency["tpot_ms"])),
        Row("TTFT", *_spread(latency["ttft_ms"])),
        Row("Inter-token", *_spread(latency["itl_ms"])),
        Row("End to end", *_spread(latency["e2e_ms"])),
        Row(
            "Running batch",
            f"{number(batch['mean'])} rows",
            f"largest {count(batch['max'])}; {percent(steps['sparse_row_share'])} of rows sparse",
        ),
        Row(
            "Step",
            milliseconds(steps["step_ms"]["mean"]),
            f"p50 {milliseconds(steps['step_ms']['p50'])}; roofline "
            f"{milliseconds(bounds['step_ms_lower'])}; {count(steps['count'])} steps",
        ),
        Row("Step bound by", *_bound(summary)),
    )


def _spread(values: Mapping[str, Any]) -> tuple[str, str]:
    mark = MARK if values["p99_has_too_few_samples"] else ""
    if values["samples"] == 0:
        return "none", "no request got this far"
    p50, p90, p99 = (milliseconds(values[name]) for name in ("p50", "p90", "p99"))
    return milliseconds(values["mean"]), f"p50 {p50}, p90 {p90}, p99 {p99}{mark}"


def _bound(summary: Summary) -> tuple[str, str]:
    shares = ((share["share_of_steps"], name) for name, share in summary["step_bound"].items())
    present = sorted(((share, name) for share, name in shares if share), reverse=True)
    if not present:
        return "nothing", "no step was run"
    text = [f"{name} {percent(share)}" for share, name in present]
    if summary["scenario"]["offload"]:
        waited = milliseconds(summary["stages_ms_per_step"]["transfer_wait"])
        text.append(f"compute waits {waited} per step for transfers")
    return text[0], "; ".join(text[1:])


def _traffic(summary: Summary) -> tuple[Row, ...]:
    scenario, links = summary["scenario"], summary["links"]
    rows = [
        _link("Host to GPU", links["pcie_h2d"], f" by {scenario['transport']}"),
        _link("GPU to host", links["pcie_d2h"]),
        _link("Network", links["network"]),
    ]
    shown = [row for row in rows if row is not None]
    return tuple(shown or [Row("No transfers", "0 B", "all KV stays in HBM")])


def _link(label: str, link: Mapping[str, Any], reached_by: str = "") -> Row | None:
    if not link["bytes_total"]:
        return None
    return Row(
        label,
        rate(link["gb_per_s_mean"], "GB/s"),
        f"{percent(link['utilisation'])} of {number(link['limit_gb_per_s'])} GB/s{reached_by} "
        f"(nominal {number(link['nominal_gb_per_s'])}); "
        f"{gigabytes(link['bytes_per_step_mean'])} per step",
    )


def _memory(summary: Summary) -> tuple[Row, ...]:
    hbm = summary["tiers"]["hbm"]
    return (
        Row(
            "HBM at peak",
            gigabytes(hbm["peak_bytes"]),
            f"weights {gigabytes(hbm['weights_bytes'])} + reserved "
            f"{gigabytes(hbm['reserved_bytes'])} + KV {gigabytes(hbm['peak_kv_bytes'])}; "
            f"usable {gigabytes(hbm['usable_bytes'])} of {gigabytes(hbm['capacity_bytes'])}",
        ),
        Row(
            "KV pool",
            gigabytes(hbm["kv_pool_bytes"]),
            f"usable {gigabytes(hbm['usable_bytes'])} - weights {gigabytes(hbm['weights_bytes'])}"
            f" - reserved {gigabytes(hbm['reserved_bytes'])}",
        ),
        *_request_memory(summary),
    )


def _request_memory(summary: Summary) -> tuple[Row, ...]:
    """Say what the longest request occupies in each phase and how many would fit."""
    hbm, host = summary["tiers"]["hbm"], summary["tiers"]["host"]
    pool, parts = hbm["kv_pool_bytes"], hbm["sparse_request_parts"]
    dense, sparse = hbm["dense_request_bytes"], hbm["sparse_request_bytes"]
    rows = [Row("Request, dense", gigabytes(dense), f"at full length; {count(pool // dense)} fit")]
    if summary["scenario"]["offload"]:
        rows += [
            Row(
                "Request, sparse",
                gigabytes(sparse),
                f"working set {gigabytes(parts['working_set_bytes'])} + min/max keys "
                f"{gigabytes(parts['compressed_keys_bytes'])} + draft KV "
                f"{gigabytes(parts['draft_kv_bytes'])}; {count(pool // sparse)} fit",
            ),
            Row(
                "Host at peak",
                gigabytes(host["peak_bytes"]),
                f"of {gigabytes(host['capacity_bytes'])} pinned for KV; "
                f"{gigabytes(host['request_bytes'])} per request",
            ),
        ]
    return tuple(rows)


def _working_set(summary: Summary) -> tuple[Row, ...]:
    residency, scenario = summary["residency"], summary["scenario"]
    if residency["needed_blocks"] is None:
        return ()
    left = number(residency["deferred_blocks"])
    chosen = scenario["budget_tokens"] // scenario["block_tokens"]
    return (
        Row(
            "Blocks missing",
            number(residency["needed_blocks"]),
            f"of about {count(chosen)} predicted; {percent(residency['hit_rate'])} were resident",
        ),
        Row(
            "Blocks fetched",
            number(residency["admitted_blocks"]),
            f"at most {count(scenario['cap_blocks'])} (fetch ratio "
            f"{scenario['fetch_ratio']:g}); {left} left in host memory, not attended",
        ),
    )


def _quality(summary: Summary) -> tuple[Row, ...]:
    quality = summary["quality"]
    if not summary["scenario"]["offload"]:
        return ()
    mass, lost = quality["attention_mass"], quality["lost_mass"]
    rows = (
        ("Top-K agreement (proxy)", quality["topk_agreement"], "attended set against the true one"),
        (
            "Attention mass (proxy)",
            mass["mean"],
            f"captured by the attended set; 5th percentile {percent(mass['p5'])}",
        ),
        (
            "Lost mass (proxy)",
            lost["mean"],
            f"missed by the attended set; 95th percentile {percent(lost['p95'])}",
        ),
    )
    return tuple(
        Row(label, percent(value), detail) for label, value, detail in rows if value is not None
    )


def _requests(summary: Summary) -> tuple[Row, ...]:
    requests = summary["requests"]
    rest = (
        ("rejected", requests["rejected"]),
        ("preempted", requests["preempted"]),
        ("running at the end", requests["running_at_end"]),
        ("waiting at the end", requests["waiting_at_end"]),
    )
    detail = ", ".join(f"{count(amount)} {name}" for name, amount in rest if amount)
    return (
        Row(
            "Completed",
            f"{count(requests['completed'])} of {count(requests['arrived'])}",
            detail or "none rejected, none preempted",
        ),
    )


def _p99_note(summary: Summary) -> tuple[str, ...]:
    latency = summary["latency"]
    few = {
        name: values["samples"]
        for name, values in latency.items()
        if values["p99_has_too_few_samples"] and values["samples"]
    }
    if not few:
        return ()
    fewest = min(few.values())
    text = (
        f"{MARK} p99 from too few samples ({count(fewest)}; {SAMPLES_FOR_P99} are needed): "
        "do not build on it"
    )
    return (text,)
