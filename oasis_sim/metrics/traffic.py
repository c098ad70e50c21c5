"""What moved over each link, against what the link can carry."""

from __future__ import annotations

from typing import Any

from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.result import RunResult
from oasis_sim.engine.scenario import Scenario
from oasis_sim.metrics.distribution import significant
from oasis_sim.units import GB, PS_PER_S


def links(result: RunResult) -> dict[str, Any]:
    """Return, per link of one GPU, bytes per step, mean rate and utilisation; means over the GPUs.

    `bytes_total` are those of all GPUs. `busiest_gpu_utilisation` is that of the GPU whose heads
    fetch most; under tensor parallelism the others wait for it.
    `utilisation` is the mean rate over `limit_gb_per_s`, the rate at which the engine's cost model
    moves the scheme's units over that link; `nominal_gb_per_s` is what the standard promises.
    Both are None for a network that the scenario does not name.
    """
    scenario, totals = result.scenario, result.totals
    pcie = scenario.profile.pcie
    gather = PS_PER_S / cost_model(scenario).transfer_ps_per_byte()
    steps = totals.count, totals.busy_ps
    tp, most = scenario.tp, int(totals.rank_h2d_bytes.max(initial=0))
    copied = _link(totals.d2h_bytes, tp, steps, pcie.usable_bytes_per_s, pcie.bytes_per_s)
    fetched = _link(totals.h2d_bytes, tp, steps, gather, pcie.bytes_per_s)
    busiest = _link(most, 1, steps, gather, None)
    return {
        "pcie_h2d": {**fetched, "busiest_gpu_utilisation": busiest["utilisation"]},
        "pcie_d2h": copied,
        "network": _link(totals.network_bytes, 1, steps, None, None),
    }


def cost_model(scenario: Scenario) -> CostModel:
    """Return the cost model that priced a run."""
    return CostModel(
        scenario.profile, scenario.engine_name, scenario.model, scenario.scheme, scenario.tp
    )


def _link(
    total: int,
    gpus: int,
    steps: tuple[int, int],
    limit_bytes_per_s: float | None,
    nominal: float | None,
) -> dict[str, float | int | None]:
    """Return the row of links that moved `total` bytes; `steps`: how many, and their time."""
    count, busy_ps = steps
    rate = total * PS_PER_S / (busy_ps * gpus) if busy_ps else None
    share = None if rate is None or limit_bytes_per_s is None else rate / limit_bytes_per_s
    return {
        "bytes_per_step_mean": significant(total / (count * gpus)) if count else None,
        "gb_per_s_mean": None if rate is None else significant(rate / GB),
        "utilisation": None if share is None else significant(share),
        "limit_gb_per_s": None
        if limit_bytes_per_s is None
        else significant(limit_bytes_per_s / GB),
        "nominal_gb_per_s": None if nominal is None else significant(nominal / GB),
        "bytes_total": total,
    }
