"""What the result table says, as plain rows; `report.table` draws them.

Everything is read from the mapping of `summary.json`, so a finished run can be shown again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oasis_sim.metrics import SAMPLES_FOR_P99
from oasis_sim.report.between_nodes import between_nodes, cluster_text
from oasis_sim.report.memory_rows import batch_limit, memory
from oasis_sim.report.numbers import (
    count,
    counted,
    gigabytes,
    milliseconds,
    number,
    percent,
    rate,
)
from oasis_sim.report.quality_rows import quality_rows
from oasis_sim.report.row import Row, Summary
from oasis_sim.report.why import WAITED_ON_DEMAND

MARK = "*"


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
        Section("Memory per GPU", memory(summary)),
        Section("Between nodes", between_nodes(summary)),
        Section("Working set, per KV head, layer and step", _working_set(summary)),
        Section("Quality proxies, read off the trace; not accuracy", quality_rows(summary)),
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
        f"{scenario['profile']}{gpus}, engine {scenario['engine']}{cluster_text(summary)}",
        _lengths(scenario),
        f"{counted(scenario['requests'], 'request')}, {_admission(scenario)}",
        f"trace {trace['name']} ({trace['origin']})" if trace["name"] else "no trace",
    )
    return "; ".join(parts)


def _lengths(scenario: Mapping[str, Any]) -> str:
    """Return the tokens of a request; mean and longest where requests differ."""
    ranges = [scenario["workload"][f"{kind}_tokens"] for kind in ("prompt", "output")]
    if all(tokens["min"] == tokens["max"] for tokens in ranges):
        prompt, output = (count(tokens["max"]) for tokens in ranges)
        return f"context {prompt} + {output} tokens"
    prompt, output = (
        f"{number(round(tokens['mean']))} (longest {count(tokens['max'])})" for tokens in ranges
    )
    return f"mean context {prompt} + {output} tokens"


def _admission(scenario: Mapping[str, Any]) -> str:
    load, limit = scenario["workload"], scenario["concurrency"]
    together = None if limit is None else f"{count(limit)} at once"
    if not load["span_s"]:
        return together or "all at once"
    arriving = (
        f"arriving over {number(load['span_s'])} s ({number(load['mean_rate_per_s'])} per second)"
    )
    return f"{arriving}, at most {together}" if together else arriving


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
            f"roofline of the whole run "
            f"{rate(bounds['output_tokens_per_s_upper'], 'tokens/s')}; "
            f"{rate(throughput['requests_per_s'], 'requests/s')}{_offered(throughput)}",
        ),
        *_per_gpu(throughput),
        *_decode_alone(throughput, "disaggregation" in summary),
        Row("TPOT", *_spread(latency["tpot_ms"])),
        Row("TTFT", *_spread(latency["ttft_ms"])),
        Row("Inter-token", *_spread(latency["itl_ms"])),
        Row("End to end", *_spread(latency["e2e_ms"])),
        Row(
            "Running batch",
            f"{number(batch['mean'])} rows",
            f"largest {count(batch['max'])}; {percent(steps['sparse_row_share'])} of rows sparse",
        ),
        batch_limit(summary),
        Row(
            "Step",
            milliseconds(steps["step_ms"]["mean"]),
            f"p50 {milliseconds(steps['step_ms']['p50'])}; roofline "
            f"{milliseconds(bounds['step_ms_lower'])}; {counted(steps['count'], 'step')}",
        ),
        Row("Steps bound by", *_bound(summary)),
    )


def _offered(throughput: Mapping[str, Any]) -> str:
    load = throughput["offered_requests_per_s"]
    return "" if load is None else f"; {rate(load, 'requests/s')} arrive"


def _per_gpu(throughput: Mapping[str, Any]) -> tuple[Row, ...]:
    """Return the rate per GPU where there are several; runs of earlier versions have no count."""
    gpus, each = throughput.get("gpus", 1), throughput["output_tokens_per_s_per_gpu"]
    if gpus == 1 or each is None:
        return ()
    return (Row("Per GPU", rate(each, "tokens/s"), f"{count(gpus)} GPUs in all"),)


def _decode_alone(throughput: Mapping[str, Any], several_nodes: bool) -> tuple[Row, ...]:
    """Return the rate of decode by itself, which the roofline of the whole run does not bound."""
    alone = throughput["decode_output_tokens_per_s"]
    if alone is None:
        return ()
    when = "per decode node, while it decodes" if several_nodes else "in steps without prefill"
    return (Row("Decode alone", rate(alone, "tokens/s"), when),)


def _spread(values: Mapping[str, Any]) -> tuple[str, str]:
    mark = MARK if values["p99_has_too_few_samples"] else ""
    if values["samples"] == 0:
        return "none", "no request got this far"
    p50, p90, p99 = (milliseconds(values[name]) for name in ("p50", "p90", "p99"))
    return milliseconds(values["mean"]), f"p50 {p50}, p90 {p90}, p99 {p99}{mark}"


def _bound(summary: Summary) -> tuple[str, str]:
    shares = ((share["share_of_time"], name) for name, share in summary["step_bound"].items())
    present = sorted(((share, name) for share, name in shares if share), reverse=True)
    if not present:
        return "nothing", "no step was run"
    first, *others = (f"{name} {percent(share)}" for share, name in present)
    text = [", ".join(["of the time", *others])]
    scenario = summary["scenario"]
    if scenario["offload"]:
        waited = milliseconds(summary["stages_ms_per_step"]["transfer_wait"])
        causes = WAITED_ON_DEMAND if scenario["lookahead"] == "none" else "for transfers"
        text.append(f"compute waits {waited} per step {causes}")
    return first, "; ".join(text)


def _traffic(summary: Summary) -> tuple[Row, ...]:
    scenario, links = summary["scenario"], summary["links"]
    rows = [
        _link("Host to GPU", links["pcie_h2d"], f" by {scenario['transport']}"),
        _link("GPU to host", links["pcie_d2h"]),
    ]
    shown = [row for row in rows if row is not None]
    if shown:
        return tuple(shown)
    if scenario["offload"]:
        why = "no KV moved in this run; host memory was only set aside for it"
    else:
        why = "all KV stays in HBM"
    return (Row("No transfers", "0 B", why),)


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


def _working_set(summary: Summary) -> tuple[Row, ...]:
    residency, scenario = summary["residency"], summary["scenario"]
    if residency["needed_blocks"] is None:
        return ()
    left = number(residency["deferred_blocks"])
    most = "as many as hide under the step"
    if scenario["cap_blocks"] is not None:
        ratio = scenario["fetch_ratio"]
        most = f"at most {count(scenario['cap_blocks'])} (fetch ratio {ratio:g})"
    return (
        Row(
            "Blocks missing",
            number(residency["needed_blocks"]),
            f"{_predicted(residency)}{percent(residency['hit_rate'])} were resident",
        ),
        Row(
            "Blocks fetched",
            number(residency["admitted_blocks"]),
            f"{most}; {left} left in host memory, not attended",
        ),
    )


def _predicted(residency: Mapping[str, Any]) -> str:
    """Say how many blocks a head predicts; runs of earlier versions did not write it."""
    chosen = residency.get("chosen_blocks")
    return "" if chosen is None else f"of {count(chosen)} predicted; "


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
