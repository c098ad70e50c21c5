"""What to measure: the options of one study, and the schemes that it compares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oasis_sim.errors import InputError, UsageError
from oasis_sim.quality.key_index import DIRECTIONS, EXTREMES, MEANS, KeyIndex
from oasis_sim.record.options import RecordOptions
from oasis_sim.scheme import Scheme, with_options

_LEAST_STEPS = 4
_MOST_RESAMPLES = 100_000


@dataclass(frozen=True)
class QualityOptions:
    """Say what is decoded and how errors are estimated.

    ``decode`` holds steps, trajectory, block size, prefill and the one drafter, as in a recording.
    ``free_run`` also lets each scheme write a text of its own. ``kv_16bit`` rounds queries, keys
    and values to bfloat16, whatever the model computes in; ``index_fp8`` keeps extreme keys in e4m3
    and counts how often exact ones choose alike. ``step_caps`` are the admissions per head of a
    scheme with an adaptive cap, by step, in turn from step 1 on. ``resamples`` and
    ``bootstrap_seed`` belong to the confidence intervals. Raises InputError for a value out of
    range.
    """

    decode: RecordOptions
    free_run: bool = True
    kv_16bit: bool = False
    index_fp8: bool = False
    step_caps: tuple[int, ...] = ()
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
    varied = tuple(
        with_options(scheme, budget_tokens=budget, predictor=predictor, fetch_ratio=ratio)
        for budget in some_budgets
        for predictor in some_predictors
        for ratio in some_ratios
    )
    for each in varied:
        check_measured(each)
    return varied


def applicable(
    scheme: Scheme, ratios: Sequence[float], predictors: Sequence[str]
) -> tuple[Sequence[float], Sequence[str]]:
    """Return the ratios and predictors that a scheme can have, beside others that have them.

    Where all KV is in HBM nothing is fetched and the step's own query selects; where every step
    fetches all that it attends, or eviction knows the future, there is no cap. A prediction that
    is corrected (FreeKV) is not the step's own query.
    """
    foreseen = scheme.evict == "belady"
    capped = scheme.offload and scheme.reuse and not foreseen
    predicted = scheme.offload and not foreseen
    corrected = scheme.correction_share > 0
    possible = [name for name in predictors if not (corrected and name == "current")]
    return (ratios if capped else ()), (possible if predicted else ())


def check_measured(scheme: Scheme) -> None:
    """Raise UsageError, with the reason, for a scheme whose quality is not measured here."""
    if not scheme.selects:
        raise UsageError(f"scheme {scheme.name}: it attends everything: it is the reference itself")
    index = index_of(scheme)
    own_order = scheme.predictor in {"current", "oracle"}
    reasons = {
        "with a cap, eviction that knows the future decides what is attended, and a decode does "
        "not know it": scheme.evict == "belady"
        and not (own_order and scheme.admission_cap == scheme.chosen_blocks),
        "keys along some directions score tokens; leave --block-size at 1": index.kind == DIRECTIONS
        and scheme.block_tokens > 1,
        "host memory of this precision is not decoded here": scheme.host_bytes_per_element > 1,
    }
    for reason, applies in reasons.items():
        if applies:
            raise UsageError(f"scheme {scheme.name}: {reason}")


def check_caps(schemes: Sequence[Scheme], options: QualityOptions) -> None:
    """Raise UsageError unless caps by step are given to adaptive schemes and to no others."""
    for scheme in schemes:
        if scheme.adaptive_cap and not options.step_caps:
            raise UsageError(
                f"scheme {scheme.name}: its cap follows from times, which a decode here does not "
                "have; say the caps by step (--step-caps)"
            )
        if options.step_caps and not scheme.adaptive_cap:
            raise UsageError(f"scheme {scheme.name}: its cap is fixed; leave --step-caps out")
        if options.index_fp8 and index_of(scheme).kind != EXTREMES:
            raise UsageError(f"scheme {scheme.name}: it keeps no extreme keys to round to 8 bits")


def index_of(scheme: Scheme) -> KeyIndex:
    """Return what a scheme keeps of its keys to choose by; raise UsageError for an unknown kind.

    Told by the index's size in keys per unit: two are the extreme keys, one is the mean, less than
    one key per token is a part of each.
    """
    per_unit = scheme.index_share * (scheme.fetch_unit_tokens or scheme.block_tokens)
    if not scheme.key_index_share or per_unit == 2.0:
        return KeyIndex(rank=scheme.key_rank, outlier_blocks=_outliers(scheme))
    if per_unit == 1.0:
        return KeyIndex(MEANS, rank=scheme.key_rank, outlier_blocks=_outliers(scheme))
    if scheme.fetch_unit_tokens == 1 and per_unit < 1.0:
        return KeyIndex(DIRECTIONS, share=per_unit, rank=scheme.key_rank)
    raise UsageError(
        f"scheme {scheme.name}: key_index_share {scheme.key_index_share:g} is neither two keys per "
        "unit (extremes), nor one (means), nor a part of the key of every token"
    )


def approximations(scheme: Scheme) -> tuple[str, ...]:
    """Return in what a scheme's decode differs from the system that it describes."""
    index = index_of(scheme)
    texts = {
        "partial keys are those along the longest directions of the prompt's keys, not skewed "
        "weights; all heads take the whole budget": index.kind == DIRECTIONS,
        "the first full-attention layer has none before it and chooses by its own query": (
            scheme.lookahead == "one_layer"
        ),
        "heads are corrected whose query moved most, as many as the scheme's share says, not those "
        "below a fixed cosine": scheme.correction_share > 0,
        "a mean key's score is the largest product with a group's queries, without their softmax": (
            index.kind == MEANS
        ),
        "an accepted draft is not kept: one token per step": scheme.speculative,
        "caps by step are those given, not those that hide under a step": scheme.adaptive_cap,
        "decoded as on demand, which attends the same; traffic is counted after the last step": (
            scheme.evict == "belady"
        ),
    }
    return tuple(text for text, applies in texts.items() if applies)


def _outliers(scheme: Scheme) -> int:
    """Return the outlier blocks: where keys are rebuilt, sink blocks only stand in for them."""
    return scheme.sink_blocks if scheme.key_rank else 0


def own_units(scheme: Scheme) -> Scheme:
    """Return a scheme in the units that it fetches, where the blocks of traces stand in for them.

    Sink and recent blocks keep their tokens; the block that is being filled stays one.
    """
    unit, block = scheme.fetch_unit_tokens or scheme.block_tokens, scheme.block_tokens
    if unit == block:
        return scheme
    return with_options(
        scheme,
        block_tokens=unit,
        unit="token" if unit == 1 else "block",
        sink_blocks=scheme.sink_blocks * block // unit,
        recent_blocks=(scheme.recent_blocks - 1) * block // unit + 1,
    )
