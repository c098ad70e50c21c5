"""What a run offers one user and one GPU, and what it asks of the link: a point of a curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oasis_sim.metrics.distribution import significant
from oasis_sim.report.row import Summary

Operating = Mapping[str, Any]


def operating_point(summary: Summary) -> dict[str, Any]:
    """Return the numbers of one point; a user's tokens per second are 1 / mean TPOT.

    The link's budget is what it could carry while the GPU computes: its limit times the mean step
    without the wait for transfers. What is missing is what would be fetched without a cap: the
    bytes fetched, times blocks missing over blocks fetched.
    """
    tpot, steps = summary["latency"]["tpot_ms"], summary["steps"]
    link, residency = summary["links"]["pcie_h2d"], summary["residency"]
    wait, step = summary["stages_ms_per_step"]["transfer_wait"], steps["step_ms"]["mean"]
    fetched, needed = link["bytes_per_step_mean"], residency["needed_blocks"]
    admitted = residency["admitted_blocks"]
    return {
        "output_tokens_per_s": summary["throughput"]["output_tokens_per_s"],
        "output_tokens_per_s_per_gpu": summary["throughput"]["output_tokens_per_s_per_gpu"],
        "output_tokens_per_s_per_user": _rounded(1000 / tpot["mean"] if tpot["mean"] else None),
        "tpot_ms_mean": tpot["mean"],
        "tpot_ms_p99": tpot["p99"],
        "ttft_ms_mean": summary["latency"]["ttft_ms"]["mean"],
        "running_batch_mean": steps["running_batch"]["mean"],
        "step_ms_mean": step,
        "transfer_wait_ms_per_step": wait,
        "h2d_bytes_per_step": fetched,
        "h2d_missing_bytes_per_step": _rounded(fetched * needed / admitted if admitted else None),
        "h2d_budget_bytes_per_step": _rounded(
            None if step is None else link["limit_gb_per_s"] * 1e6 * (step - (wait or 0.0))
        ),
        "h2d_utilisation": link["utilisation"],
        "attention_mass_mean": summary["quality"]["attention_mass"]["mean"],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else significant(value)


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return which points no other one beats in both values (Pareto), in ascending order of x."""
    order = sorted(range(len(points)), key=lambda index: (-points[index][0], -points[index][1]))
    kept: list[int] = []
    highest = float("-inf")
    for index in order:
        if points[index][1] > highest:
            kept.append(index)
            highest = points[index][1]
    return kept[::-1]
