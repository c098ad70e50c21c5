"""From what a sparse run left behind to numbers. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from oasis_sim.quality.bootstrap import BlockBootstrap, Estimate
from oasis_sim.quality.result import CaseQuality, FreeRun, LayerQuality, StretchQuality
from oasis_sim.scheme import Scheme

STRETCHES = 4
KV_BYTES = 2
"""Bytes of one element of a key or value when traffic is counted: 16 bits, as engines keep it."""

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StepQuality:
    """Hold a sparse run beside full attention: outputs [T], counts and mass [T, L, H]."""

    kl: Values
    top1_agreement: Values
    nll_difference: Values
    attention_mass: Values
    overlap: NDArray[np.int32]
    needed: NDArray[np.int32]
    admitted: NDArray[np.int32]
    alike: NDArray[np.int32] | None = None


def output_quality(full: Values, sparse: Values, token: int) -> Values:
    """Return KL(full || sparse), whether the likeliest tokens agree, and the NLL difference.

    ``full`` [V] and ``sparse`` [R, V] are log-probabilities; ``token`` is the one that follows.
    Returns float64 [R, 3].
    """
    possible = full > -np.inf
    terms = np.exp(full[possible]) * (full[possible] - sparse[:, possible])
    # The sum of a divergence is 0 or more; what lies below is rounding.
    kl = np.maximum(terms.sum(axis=-1), 0.0)
    agree = sparse.argmax(axis=-1) == np.argmax(full)
    return np.stack([kl, agree, full[token] - sparse[:, token]], axis=-1)


def summarise(
    scheme: Scheme,
    steps: StepQuality,
    layer_ids: Sequence[int],
    head_dim: int,
    bootstrap: BlockBootstrap,
) -> tuple[dict[str, Estimate], float, tuple[LayerQuality, ...], tuple[StretchQuality, ...]]:
    """Return estimates, bytes per step, layers and stretches, all over the steps 1 .. T-1."""
    share = 1.0 / scheme.chosen_blocks
    counts = {name: getattr(steps, name)[1:] * share for name in ("overlap", "needed", "admitted")}
    by_head = {"attention_mass": steps.attention_mass[1:], **counts}
    estimates = {
        name: bootstrap.estimate(getattr(steps, name)[1:])
        for name in ("kl", "top1_agreement", "nll_difference")
    }
    estimates |= {
        name: bootstrap.estimate(values.mean(axis=(1, 2))) for name, values in by_head.items()
    }
    if steps.alike is not None:
        estimates["index_agreement"] = bootstrap.estimate(
            (steps.alike[1:] * share).mean(axis=(1, 2))
        )
    layers = tuple(
        LayerQuality(layer, **{key: float(v[:, place].mean()) for key, v in by_head.items()})
        for place, layer in enumerate(layer_ids)
    )
    element_bytes = (scheme.host_bytes_per_element or KV_BYTES) if scheme.offload else 0
    parts = 1 if scheme.key_rank else 2  # keys are rebuilt, values come
    block_bytes = parts * scheme.block_tokens * head_dim * element_bytes
    bytes_per_step = float(steps.admitted[1:].sum(axis=(1, 2)).mean()) * block_bytes
    return estimates, bytes_per_step, layers, _stretches(steps)


def _stretches(steps: StepQuality) -> tuple[StretchQuality, ...]:
    """Cut the steps 1 .. T-1 into stretches of about equal length."""
    count = len(steps.kl) - 1
    edges = np.linspace(1, count + 1, min(STRETCHES, count) + 1).round().astype(int).tolist()
    return tuple(
        StretchQuality(
            first_step=first,
            last_step=after - 1,
            kl=float(steps.kl[first:after].mean()),
            top1_agreement=float(steps.top1_agreement[first:after].mean()),
            nll_difference=float(steps.nll_difference[first:after].mean()),
            attention_mass=float(steps.attention_mass[first:after].mean()),
        )
        for first, after in pairwise(edges)
    )


def most_fetching(schemes: Sequence[Scheme]) -> dict[tuple[str, int, str], int]:
    """Return, by name, budget and predictor, the index of the scheme that fetches most."""
    best: dict[tuple[str, int, str], int] = {}
    for index, scheme in enumerate(schemes):
        key = (scheme.name, scheme.budget_tokens, scheme.predictor)
        if key not in best or scheme.admission_cap > schemes[best[key]].admission_cap:
            best[key] = index
    return best


def compare_texts(full: Sequence[int], sparse: Sequence[int], nll_difference: float) -> FreeRun:
    """Compare two texts of one length, token by token."""
    equal = [one == other for one, other in zip(full, sparse, strict=True)]
    before = equal.index(False) if False in equal else len(equal)
    return FreeRun(len(equal), before, sum(equal) / len(equal), nll_difference)


def collect(cases: Sequence[CaseQuality], boot: BlockBootstrap) -> tuple[CaseQuality, ...]:
    """Add to each case how far its KL lies above that of the case that fetches most."""
    best = most_fetching([case.scheme for case in cases])
    done = []
    for case in cases:
        scheme = case.scheme
        least = cases[best[scheme.name, scheme.budget_tokens, scheme.predictor]]
        more = boot.estimate(np.array(case.kl_by_step) - np.array(least.kl_by_step))
        estimates = {**case.estimates, "kl_above_most_fetching": more}
        done.append(replace(case, estimates=estimates))
    return tuple(done)
