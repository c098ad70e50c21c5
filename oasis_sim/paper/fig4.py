"""Figure 4: top-20 accuracy of the draft's query and of the previous token's, by layer."""

from __future__ import annotations

from collections.abc import Mapping

from oasis_sim.paper.accuracy import (
    MEAN,
    PREDICTORS,
    agreement_by_layer,
    mean_of,
    traced_model,
)
from oasis_sim.paper.comparison import Comparison, Row
from oasis_sim.paper.published import Published
from oasis_sim.paper.setup import Setup

NAME = "fig4"
TITLE = "Figure 4: top-20 accuracy of draft and previous token, by layer"
TOP = 20
MODEL = "qwen3-8b"
METRIC, UNIT = "top20_accuracy_pct", "percent"
EXTREMES = {"min": "accuracy_min_pct", "max": "accuracy_max_pct"}
NOTE = (
    f"share of the next true query's best {TOP} blocks that are among the predictor's best {TOP}; "
    "mean over steps and KV heads; layers that the trace does not record are empty; the paper "
    "gives mean and extremes only"
)


def compare(setup: Setup, published: Published) -> Comparison:
    """Read the accuracy of every layer, mean and extremes off the trace, per predictor."""
    rows: list[Row] = []
    same_model = traced_model(setup.traces).lower() == MODEL
    for predictor in PREDICTORS:
        simulated = agreement_by_layer(setup.traces, predictor, TOP)
        rows += [
            Row({"layer": layer, "predictor": predictor}, METRIC, UNIT, None, value)
            for layer, value in simulated.items()
        ]
        totals = totals_of(simulated)
        for name, metric in {MEAN: "accuracy_mean_pct", **EXTREMES}.items():
            known = published.value(NAME, {"predictor": predictor}, metric) if same_model else None
            keys: dict[str, str | float] = {"layer": name, "predictor": predictor}
            rows.append(Row(keys, METRIC, UNIT, known, totals[name]))
    origin = tuple(
        f"trace {trace.name} is synthetic, fitted to the published means: no test of the claim"
        for trace in setup.traces
        if trace.is_synthetic
    )
    return Comparison(NAME, TITLE, tuple(rows), (NOTE, *origin))


def totals_of(values: Mapping[int, float | None]) -> dict[str, float | None]:
    """Return mean, least and largest of the layers that have a value."""
    known = [value for value in values.values() if value is not None]
    return {
        MEAN: mean_of(values),
        "min": min(known, default=None),
        "max": max(known, default=None),
    }
