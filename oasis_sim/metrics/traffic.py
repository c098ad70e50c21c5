"""What moved over each link, against what the link can carry."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from oasis_sim.engine.result import RunResult
from oasis_sim.engine.scenario import Scenario
from oasis_sim.metrics.distribution import significant
from oasis_sim.units import GB, PS_PER_S


def links(result: RunResult) -> dict[str, Any]:
    """Return, per link of one GPU, bytes per step, mean rate and utilisation.

    `utilisation` is the mean rate over `limit_gb_per_s`, what the scheme's transport can reach
    on that link with its transfer size; `nominal_gb_per_s` is what the standard promises.
    """
    scenario, steps = result.scenario, result.steps
    pcie, network = scenario.profile.pcie, scenario.profile.network
    gather = min(pcie.usable_bytes_per_s, transport_bytes_per_s(scenario))
    busy_ps = int((steps.end_ps - steps.start_ps).sum())
    return {
        "pcie_h2d": _link(steps.h2d_bytes, busy_ps, gather, pcie.bytes_per_s),
        "pcie_d2h": _link(steps.d2h_bytes, busy_ps, pcie.usable_bytes_per_s, pcie.bytes_per_s),
        "network": _link(
            steps.network_bytes, busy_ps, network.usable_bytes_per_s, network.bytes_per_s
        ),
    }


def transport_bytes_per_s(scenario: Scenario) -> float:
    """Return the rate at which the scheme's transport moves units of its size."""
    scheme = scenario.scheme
    unit_tokens = scheme.block_tokens if scheme.unit == "block" else 1
    transport = scenario.profile.engine(scenario.engine_name).transport(scheme.transport)
    return transport.bytes_per_s.at(scenario.model.block_head_bytes(unit_tokens))


def _link(
    moved: npt.NDArray[np.int64], busy_ps: int, limit_bytes_per_s: float, nominal: float
) -> dict[str, float | int | None]:
    total, count = int(moved.sum()), len(moved)
    rate = total * PS_PER_S / busy_ps if busy_ps else None
    return {
        "bytes_per_step_mean": significant(total / count) if count else None,
        "gb_per_s_mean": None if rate is None else significant(rate / GB),
        "utilisation": None if rate is None else significant(rate / limit_bytes_per_s),
        "limit_gb_per_s": significant(limit_bytes_per_s / GB),
        "nominal_gb_per_s": significant(nominal / GB),
        "bytes_total": total,
    }
