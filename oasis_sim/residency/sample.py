"""How far results move when a trace holds fewer steps, layers or heads.

A recording is a sample of what a run would do. Cutting it further and looking at the spread of
the pieces shows how large a sample is enough: pieces are disjoint, so their spread is that of
samples of their size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from oasis_sim.residency.stats import StatsRow, full_attention_part, trace_stats
from oasis_sim.trace.part import select_part
from oasis_sim.trace.trace import AttentionTrace

PARTS = (1, 2, 4, 8)
METRICS = ("needed", "admitted", "overlap", "attention_mass")
LEAST_STEPS = 4


@dataclass(frozen=True)
class SampleRow:
    """Report the pieces of one size along one axis (``steps``, ``layers`` or ``heads``).

    Each of `samples` pieces keeps `kept` of `whole`. ``mean`` holds the mean over the pieces of
    each metric of ``StatsRow``, ``deviation`` the largest distance of a piece from the whole
    trace (None where the trace holds no mass).
    """

    axis: str
    kept: int
    whole: int
    samples: int
    stats: StatsRow
    mean: dict[str, float | None]
    deviation: dict[str, float | None]

    def to_json(self) -> dict[str, Any]:
        """Return the row as a flat JSON object."""
        return {
            "budget_tokens": self.stats.budget_tokens,
            "predictor": self.stats.predictor,
            "fetch_ratio": self.stats.fetch_ratio,
            "axis": self.axis,
            "kept": self.kept,
            "of": self.whole,
            "samples": self.samples,
            **self.mean,
            **{f"{name}_max_deviation": value for name, value in self.deviation.items()},
        }


def sample_stats(
    trace: AttentionTrace, budget_tokens: int, fetch_ratio: float, predictor: str
) -> list[SampleRow]:
    """Cut a trace into 1, 2, 4 and 8 pieces along each axis and compare them with the whole.

    Steps are cut into windows, layers and heads are dealt out in turn (so that each piece spans
    the depth of the model). Cuts that leave fewer than 4 steps, or no layer or head, are left
    out. Raises InputError like ``trace_stats``.
    """
    trace = full_attention_part(trace)
    whole = _row(trace, budget_tokens, fetch_ratio, predictor)
    rows = []
    sizes = {"steps": trace.steps, "layers": trace.layers, "heads": trace.kv_heads}
    for axis, size in sizes.items():
        least = LEAST_STEPS if axis == "steps" else 1
        for parts in PARTS:
            if size // parts < least:
                break
            pieces = [
                _row(piece, budget_tokens, fetch_ratio, predictor)
                for piece in _pieces(trace, axis, parts)
            ]
            rows.append(_sample_row(axis, size, whole, pieces))
    return rows


def _row(trace: AttentionTrace, budget: int, ratio: float, predictor: str) -> StatsRow:
    """Return the statistics of one piece."""
    return trace_stats(trace, [budget], [ratio], [predictor])[0]


def _pieces(trace: AttentionTrace, axis: str, parts: int) -> Iterator[AttentionTrace]:
    """Yield equally large disjoint pieces of a trace."""
    if axis == "steps":
        length = trace.steps // parts
        for part in range(parts):
            yield select_part(trace, steps=slice(part * length, (part + 1) * length))
    elif axis == "layers":
        kept = trace.layers // parts
        for part in range(parts):
            yield select_part(trace, layers=range(trace.layers)[part::parts][:kept])
    else:
        kept = trace.kv_heads // parts
        for part in range(parts):
            yield select_part(trace, heads=range(trace.kv_heads)[part::parts][:kept])


def _sample_row(axis: str, size: int, whole: StatsRow, pieces: list[StatsRow]) -> SampleRow:
    """Compare pieces with the whole."""
    mean: dict[str, float | None] = {}
    deviation: dict[str, float | None] = {}
    for name in METRICS:
        full = getattr(whole, name)
        values = [getattr(piece, name) for piece in pieces]
        known = full is not None
        mean[name] = sum(values) / len(values) if known else None
        deviation[name] = max(abs(value - full) for value in values) if known else None
    return SampleRow(axis, size // len(pieces), size, len(pieces), whole, mean, deviation)
