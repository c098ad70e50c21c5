"""What to measure: the options of one study, and the schemes that it compares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oasis_sim.errors import InputError, UsageError
from oasis_sim.record.options import RecordOptions
from oasis_sim.scheme import Scheme, with_options

_LEAST_STEPS = 4
_MOST_RESAMPLES = 100_000


@dataclass(frozen=True)
class QualityOptions:
    """Say what is decoded and how errors are estimated.

    ``decode`` holds steps, trajectory, block size, prefill and the one drafter, as in a recording.
    ``free_run`` also lets each scheme write a text of its own. ``kv_16bit`` rounds queries, keys
    and values to bfloat16, whatever the model computes in. ``resamples`` and
    ``bootstrap_seed`` belong to the confidence intervals. Raises InputError for a value out of
    range.
    """

    decode: RecordOptions
    free_run: bool = True
    kv_16bit: bool = False
    resamples: int = 2000
    bootstrap_seed: int = 0

    def __post_init__(self) -> None:
        """Check the fields that are not checked by the recording's options."""
        if self.decode.steps < _LEAST_STEPS:
            raise InputError(
                f"{self.decode.steps} steps say nothing",
                field="steps",
                fix=f"use {_LEAST_STEPS} or more",
            )
        if len(self.decode.drafters) != 1:
            raise InputError("one drafter is measured at a time", field="drafter", fix="name one")
        if not 10 <= self.resamples <= _MOST_RESAMPLES:
            raise InputError(
                f"{self.resamples} is out of range",
                field="resamples",
                fix=f"use 10 to {_MOST_RESAMPLES}",
            )

    @property
    def drafter(self) -> str:
        """Return the name of the drafter, as it was given."""
        return self.decode.drafters[0]


def vary_scheme(
    scheme: Scheme,
    budgets: Sequence[int],
    ratios: Sequence[float],
    predictors: Sequence[str],
) -> tuple[Scheme, ...]:
    """Return the scheme with each budget, predictor and fetch ratio (1 = all), in this order.

    An empty sequence leaves the scheme's own part as it is. Raises UsageError for a scheme that
    is not measured here, for parts that contradict each other, and for a value given twice.
    """
    check_measured(scheme)
    for name, given in (("budget", budgets), ("fetch-ratio", ratios), ("predictor", predictors)):
        twice = [str(value) for value in given if list(given).count(value) > 1]
        if twice:
            raise UsageError(f"--{name} names {twice[0]} twice")
    some_budgets: list[int | None] = [*budgets] or [None]
    some_predictors: list[str | None] = [*predictors] or [None]
    some_ratios: list[float | None] = [*ratios] or [None]
    return tuple(
        with_options(scheme, budget_tokens=budget, predictor=predictor, fetch_ratio=ratio)
        for budget in some_budgets
        for predictor in some_predictors
        for ratio in some_ratios
    )


def check_measured(scheme: Scheme) -> None:
    """Raise UsageError, with the reason, for a scheme whose quality is not measured here."""
    reasons = {
        "it attends everything: it is the reference itself": not scheme.selects,
        "its cap follows from times, which a real decode here does not have": scheme.adaptive_cap,
        "its eviction knows the future, which a real decode does not": scheme.evict == "belady",
        "prediction one layer ahead is not decoded here": scheme.lookahead == "one_layer",
        "corrected predictions are not decoded here": scheme.correction_share > 0,
        "fetching again what is resident is not counted here": not scheme.reuse,
        "keys of low rank are not decoded here": scheme.key_rank > 0,
        "host memory of this precision is not decoded here": scheme.host_bytes_per_element > 1,
    }
    for reason, applies in reasons.items():
        if applies:
            raise UsageError(f"scheme {scheme.name}: {reason}")
