"""What a study returns: each scheme's quality with confidence intervals, per layer and by length.

KL is the divergence of the sparse model's next-token distribution from that of full attention,
KL(full || sparse), in nats; negative log-likelihoods are in nats per token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from oasis_sim.quality.bootstrap import Estimate
from oasis_sim.scheme import Scheme

ESTIMATES = (
    "kl",
    "kl_above_most_fetching",
    "top1_agreement",
    "nll_difference",
    "attention_mass",
    "overlap",
    "needed",
    "admitted",
)
INDEX_AGREEMENT = "index_agreement"
"""Beside these, of an index in 8 bits: the share of its choice that exact extreme keys choose."""


@dataclass(frozen=True)
class LayerQuality:
    """Report one layer; means over steps and KV heads, counts as fractions of the chosen blocks."""

    layer: int
    attention_mass: float
    overlap: float
    needed: float
    admitted: float


@dataclass(frozen=True)
class StretchQuality:
    """Report a stretch of steps, both ends included."""

    first_step: int
    last_step: int
    kl: float
    top1_agreement: float
    nll_difference: float
    attention_mass: float


@dataclass(frozen=True)
class FreeRun:
    """Compare the text that a scheme writes greedily with the one that full attention writes.

    ``nll_difference``: how much less likely the scheme's text is than full attention's own, both
    read with full attention.
    """

    tokens: int
    equal_before_first_difference: int
    equal_share: float
    nll_difference: float


@dataclass(frozen=True, eq=False)
class CaseQuality:
    """Report one scheme over the steps 1 .. T-1 (step 0 starts with its true set).

    ``estimates`` holds the names of ``ESTIMATES``; ``kl_above_most_fetching`` is the paired
    difference to the case of this scheme, budget and predictor that fetches most. Mass is the share
    of full attention, by the sparse model's own query, that was read.
    """

    scheme: Scheme
    estimates: Mapping[str, Estimate]
    bytes_per_step: float
    layers: tuple[LayerQuality, ...]
    stretches: tuple[StretchQuality, ...]
    kl_by_step: tuple[float, ...]  # steps 1 .. T-1
    draft_accepted: float | None = None
    free_run: FreeRun | None = None
    step_caps: tuple[int, ...] = ()

    @property
    def fetch_ratio(self) -> float:
        """Return the share of the budget that may be fetched per step, of caps by step the mean."""
        if self.step_caps:
            return min(1.0, self.mean_cap / self.scheme.budget_blocks)
        return fetch_ratio(self.scheme)

    @property
    def mean_cap(self) -> float:
        """Return the admissions per head and step, of caps by step the mean."""
        if not self.step_caps:
            return self.scheme.admission_cap
        most = self.scheme.chosen_blocks
        return sum(min(cap, most) for cap in self.step_caps) / len(self.step_caps)

    def facts(self) -> dict[str, Any]:
        """Return what the case is."""
        scheme = self.scheme
        return {
            "scheme": scheme.name,
            "block_tokens": scheme.block_tokens,
            "budget_tokens": scheme.budget_tokens,
            "predictor": scheme.predictor,
            "fetch_ratio": self.fetch_ratio,
            "cap_blocks": self.mean_cap,
            "chosen_blocks": scheme.chosen_blocks,
            "pool_blocks": scheme.pool_blocks,
        }

    def named_estimates(self) -> Iterator[tuple[str, Estimate]]:
        """Return the estimates in a fixed order."""
        for name in (*ESTIMATES, INDEX_AGREEMENT):
            if name in self.estimates:
                yield name, self.estimates[name]

    def to_json(self) -> dict[str, Any]:
        """Return the case as a JSON object."""
        return {
            **self.facts(),
            "bytes_per_step": self.bytes_per_step,
            "draft_accepted": self.draft_accepted,
            **{name: found.to_json() for name, found in self.named_estimates()},
            "layers": [asdict(layer) for layer in self.layers],
            "stretches": [asdict(stretch) for stretch in self.stretches],
            "free_run": None if self.free_run is None else asdict(self.free_run),
            "kl_by_step": list(self.kl_by_step),
        }

    def flat(self) -> dict[str, Any]:
        """Return the case as one row: intervals as NAME, NAME_low and NAME_high."""
        row = {**self.facts(), "bytes_per_step": self.bytes_per_step}
        row["draft_accepted"] = self.draft_accepted
        for name, found in self.named_estimates():
            row |= {name: found.mean, f"{name}_low": found.low, f"{name}_high": found.high}
        free = {} if self.free_run is None else asdict(self.free_run)
        for name in FreeRun.__dataclass_fields__:
            row[f"free_run_{name}"] = free.get(name)
        return row


@dataclass(frozen=True, eq=False)
class QualityResult:
    """Report a study: what was decoded (``facts``), and one case per scheme and its variation."""

    facts: Mapping[str, Any]
    cases: tuple[CaseQuality, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the schemes."""
        return tuple(scheme["name"] for scheme in self.facts["schemes"])

    def to_json(self) -> dict[str, Any]:
        """Return the study as a JSON object."""
        return {**self.facts, "cases": [case.to_json() for case in self.cases]}


def fetch_ratio(scheme: Scheme) -> float:
    """Return the share of the budget that may be fetched per step, 1 when all may."""
    if scheme.cap_blocks is not None:
        return min(1.0, scheme.cap_blocks / scheme.budget_blocks)
    return 1.0 if scheme.fetch_ratio is None else scheme.fetch_ratio
