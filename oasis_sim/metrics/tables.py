"""The rows of `steps.csv` and `requests.csv`: integers as simulated, nothing rounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from oasis_sim.engine.result import BOUNDS, STAGES, STATUS, RequestLog, StepLog
from oasis_sim.metrics.distribution import finite_or_none
from oasis_sim.metrics.latency import since_arrival_ps, time_per_output_token_ps

Cell = int | float | str | None


@dataclass(frozen=True)
class Table:
    """Hold named columns of equal length."""

    columns: tuple[tuple[str, Sequence[Cell]], ...]

    @property
    def header(self) -> tuple[str, ...]:
        """Return the column names."""
        return tuple(name for name, _ in self.columns)

    def rows(self) -> list[tuple[Cell, ...]]:
        """Return the rows in order."""
        return list(zip(*(values for _, values in self.columns), strict=True))


def steps_table(steps: StepLog) -> Table:
    """Return one row per step."""
    plain = (
        "start_ps",
        "end_ps",
        "sparse_rows",
        "dense_rows",
        "prefill_tokens",
        "context_tokens",
        "output_tokens",
        "needed_blocks",
        "admitted_blocks",
        "deferred_blocks",
        "h2d_bytes",
        "d2h_bytes",
        "network_bytes",
        "hbm_kv_bytes",
        "host_kv_bytes",
    )
    columns: list[tuple[str, Sequence[Cell]]] = [("step", range(len(steps)))]
    columns += [(name, _integers(getattr(steps, name))) for name in plain]
    columns += [(f"{name}_ps", _integers(steps.stage_ps[:, i])) for i, name in enumerate(STAGES)]
    columns.append(("bound", [BOUNDS[i] for i in steps.bound]))
    proxies = (
        ("topk_agreement", steps.overlap),
        ("attention_mass", steps.mass),
        ("lost_mass", steps.lost_mass),
    )
    columns += [(name, [finite_or_none(v) for v in values.tolist()]) for name, values in proxies]
    return Table(tuple(columns))


def requests_table(requests: RequestLog) -> Table:
    """Return one row per request; an empty cell means that it never happened."""
    times = (
        ("admitted_ps", requests.admitted_ps),
        ("first_token_ps", requests.first_token_ps),
        ("finish_ps", requests.finish_ps),
        ("ttft_ps", since_arrival_ps(requests, requests.first_token_ps)),
        ("tpot_ps", time_per_output_token_ps(requests)),
        ("e2e_ps", since_arrival_ps(requests, requests.finish_ps)),
    )
    columns: list[tuple[str, Sequence[Cell]]] = [
        ("request", range(len(requests))),
        ("status", [STATUS[i] for i in requests.status]),
        ("arrival_ps", _integers(requests.arrival_ps)),
        ("prompt_tokens", _integers(requests.prompt_tokens)),
        ("output_tokens", _integers(requests.output_tokens)),
        ("generated_tokens", _integers(requests.generated_tokens)),
        ("preemptions", _integers(requests.preemptions)),
    ]
    columns += [(name, [None if v < 0 else v for v in values.tolist()]) for name, values in times]
    return Table(tuple(columns))


def _integers(values: npt.NDArray[np.generic]) -> list[int]:
    return [int(value) for value in values.tolist()]
