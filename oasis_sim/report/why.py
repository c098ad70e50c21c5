"""Say in sentences why runs differ: what binds each, and where time and batch come from."""

from __future__ import annotations

from typing import Any

from oasis_sim.report.memory_rows import whose
from oasis_sim.report.numbers import counted, gibibytes, gigabytes, number, percent
from oasis_sim.report.row import Summary
from oasis_sim.report.side_by_side import Case

CRITICAL = (
    "qkv",
    "attention",
    "output_ffn",
    "lm_head",
    "draft",
    "launch",
    "prefill",
    "transfer_wait",
)
"""Stages that follow one another in every step; see `critical_stages`."""

WAITED_ON_DEMAND = "for prediction, selection and transfer"
SHOWN_STAGES = 3
LEAST_SHARE = 0.02


def limits_of(summary: Summary) -> dict[str, Any]:
    """Return what binds a run: its steps (`time`), its batch (`batch`), and why, in words."""
    time, time_why = _time_limit(summary)
    batch, batch_why = _batch_limit(summary)
    return {"time": time, "time_why": time_why, "batch": batch, "batch_why": batch_why}


def critical_stages(summary: Summary) -> dict[str, float]:
    """Return stages that follow one another in a step, in ms; the others are beside or in a wait.

    Prediction is one of them where an engine runs it inline.
    """
    inline = ("prediction",) if summary["scenario"].get("prediction_inline") else ()
    return {name: summary["stages_ms_per_step"][name] or 0.0 for name in (*CRITICAL, *inline)}


def _time_limit(summary: Summary) -> tuple[str | None, str]:
    """Return the kind of limit that most of the time is spent at."""
    shares = {name: share["share_of_time"] or 0.0 for name, share in summary["step_bound"].items()}
    stages = critical_stages(summary)
    if not any(shares.values()):
        return None, "no step was run"
    bound = max(shares, key=lambda name: shares[name])
    text = f"{percent(shares[bound])} of the time is in steps bound by {bound}"
    if bound == "transfer":
        text += f" ({_transfer_reason(summary)})"
    else:
        # Prefill beside decode is a limit of its own, not a stage of the compute bound.
        named = [name for name in stages if (name == "prefill") == (bound == "prefill")]
        largest = max(named, key=lambda name: stages[name])
        text += f" (longest stage: {largest}, {number(stages[largest])} ms per step)"
    return bound, text


def _transfer_reason(summary: Summary) -> str:
    link = summary["links"]["pcie_h2d"]
    waited = f"compute waits {number(summary['stages_ms_per_step']['transfer_wait'])} ms per step"
    if not summary["scenario"]["offload"]:
        return f"scan and selection are on the critical path: {waited}"
    if summary["scenario"]["lookahead"] == "none":
        waited += f" {WAITED_ON_DEMAND}"
    if summary["scenario"]["lookahead"] == "none":
        return f"blocks are fetched on demand, on the critical path: {waited}"
    return (
        f"PCIe at {percent(link['utilisation'])} of {number(link['limit_gb_per_s'])} GB/s: {waited}"
    )


def _batch_limit(summary: Summary) -> tuple[str, str]:
    """Return what holds the batch where it is, as the summary says, and why in words."""
    scenario, tiers = summary["scenario"], summary["tiers"]
    hbm, host = tiers["hbm"], tiers["host"]
    each = f"each ({whose(summary)})"
    why = {
        "concurrency": f"no more than {counted(scenario['concurrency'], 'request')} at once",
        "requests": f"the run has no more than {counted(scenario['requests'], 'request')}",
        "arrivals": "memory would hold more than arrive",
        "prefill": "requests wait for a place in prefill",
        "prefill_nodes": "requests wait for a prefill node",
        "hbm": f"HBM holds about {counted(hbm['requests_that_fit'], 'request')}: KV pool "
        f"{gibibytes(hbm['kv_pool_bytes'])} / {gibibytes(hbm['decode_request_bytes'])} {each}",
        "host": f"host memory holds about {counted(host['requests_that_fit'], 'request')}: "
        f"{gibibytes(host['capacity_bytes'])} / {gibibytes(host['request_bytes'])} {each}",
    }
    limit = summary["batch_limit"]
    return limit, why[limit]


def reasons(cases: tuple[Case, ...]) -> tuple[str, ...]:
    """Return one sentence per case on what binds it, then how each differs from the first."""
    found = []
    for case in cases:
        limits = limits_of(case.summary)
        mean = number(case.summary["steps"]["running_batch"]["mean"])
        found.append(
            f"{case.name}: {limits['time_why']}; running batch {mean}: {limits['batch_why']}"
        )
    first = cases[0]
    for other in cases[1:]:
        found += _difference(first, other)
    return tuple(found)


def _difference(first: Case, other: Case) -> list[str]:
    """Split a difference in throughput into batch and step, and the step into stages."""
    pair = f"{other.name} against {first.name}"
    return [
        f"{pair}: {text}"
        for text in (
            _speed(first.summary, other.summary),
            _stages(first.summary, other.summary),
            _traffic(first.summary, other.summary),
            _quality(first.summary, other.summary),
        )
        if text
    ]


def _speed(first: Summary, other: Summary) -> str:
    rates = [each["throughput"]["output_tokens_per_s"] for each in (other, first)]
    batch = [each["steps"]["running_batch"]["mean"] for each in (other, first)]
    step = [each["steps"]["step_ms"]["mean"] for each in (other, first)]
    if not all((*rates, *batch, *step)):
        return ""
    gpus = [each["throughput"].get("gpus") for each in (other, first)]
    if gpus[0] != gpus[1] and all(gpus):
        each = [speed / among for speed, among in zip(rates, gpus, strict=True)]
        return (
            f"{_times(rates)} the tokens/s with {counted(gpus[0], 'GPU')} against {gpus[1]:,}: "
            f"{_times(each)} per GPU"
        )
    return (
        f"{_times(rates)} the tokens/s, from {_times(batch)} the batch "
        f"({number(batch[0])} against {number(batch[1])} requests) and {_times(step)} the step "
        f"({number(step[0])} against {number(step[1])} ms)"
    )


def _times(pair: list[float]) -> str:
    return f"{pair[0] / pair[1]:.2f}x"


def _stages(first: Summary, other: Summary) -> str:
    """Name the stages of the critical path that changed most."""
    old, new = critical_stages(first), critical_stages(other)
    change = {name: new.get(name, 0.0) - old.get(name, 0.0) for name in (old | new)}
    least = LEAST_SHARE * (first["steps"]["step_ms"]["mean"] or 0.0)
    largest = sorted(change, key=lambda name: -abs(change[name]))[:SHOWN_STAGES]
    shown = [
        f"{name} {'+' if change[name] > 0 else '-'}{number(abs(change[name]))} ms"
        f"{'' if name in old and name in new else ' (beside the others in one of the two)'}"
        for name in largest
        if abs(change[name]) > least
    ]
    return f"the step changes by {', '.join(shown)}" if shown else ""


def _traffic(first: Summary, other: Summary) -> str:
    sizes = [each["links"]["pcie_h2d"]["bytes_per_step_mean"] or 0 for each in (other, first)]
    if not any(sizes) or abs(sizes[0] - sizes[1]) <= LEAST_SHARE * max(sizes):
        return ""
    return f"{gigabytes(sizes[0])} against {gigabytes(sizes[1])} per step from host memory"


def _quality(first: Summary, other: Summary) -> str:
    """Compare proxies; a run that attends all KV has none and loses none."""
    masses = [_proxy(each, each["quality"]["attention_mass"]["mean"]) for each in (other, first)]
    agreement = [_proxy(each, each["quality"]["topk_agreement"]) for each in (other, first)]
    parts = [
        f"{name} {percent(values[0])} against {percent(values[1])}"
        for name, values in (("attention mass", masses), ("top-K agreement", agreement))
        if _apart(*values)
    ]
    return f"proxies of quality: {', '.join(parts)} (all KV is 100 %)" if parts else ""


def _apart(one: float | None, other: float | None) -> bool:
    """Say whether two shares are known and differ by more than rounding."""
    return one is not None and other is not None and abs(one - other) > LEAST_SHARE / 10


def _proxy(summary: Summary, value: float | None) -> float | None:
    """Return a proxy; a run that attends all KV without measuring it misses nothing."""
    return 1.0 if value is None and not summary["scenario"]["offload"] else value
