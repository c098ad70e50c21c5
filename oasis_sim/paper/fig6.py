"""Figure 6: agreement of the draft's selection with the next query's, layer by layer."""

from __future__ import annotations

from oasis_sim.paper.accuracy import (
    MEAN,
    agreement_by_layer,
    mean_of,
    traced_model,
)
from oasis_sim.paper.comparison import Comparison, Row
from oasis_sim.paper.published import Published
from oasis_sim.paper.setup import Setup
from oasis_sim.residency.predict import DRAFT

NAME = "fig6"
TITLE = "Figure 6: agreement of the draft's top 128 blocks with the next query's, by layer"
TOP = 128
MODEL = "qwen3-8b"
METRIC, UNIT = "agreement_pct", "percent"
NOTE = (
    f"share of the next true query's best {TOP} blocks that are among the draft's best {TOP}; mean "
    "over steps and KV heads; layers that the trace does not record are empty"
)


def compare(setup: Setup, published: Published) -> Comparison:
    """Read the agreement of every layer and their mean off the trace."""
    simulated = agreement_by_layer(setup.traces, DRAFT, TOP)
    same_model = traced_model(setup.traces).lower() == MODEL
    rows, known = [], []
    for layer, value in simulated.items():
        found = published.value(NAME, {"layer": layer}, METRIC) if same_model else None
        known += [] if found is None else [found]
        rows.append(Row({"layer": layer, "predictor": DRAFT}, METRIC, UNIT, found, value))
    mean = sum(known) / len(known) if known else None
    rows.append(Row({"layer": MEAN, "predictor": DRAFT}, METRIC, UNIT, mean, mean_of(simulated)))
    origin = tuple(
        f"trace {trace.name} is synthetic, fitted to the published agreement: no test of the claim"
        for trace in setup.traces
        if trace.is_synthetic
    )
    return Comparison(NAME, TITLE, tuple(rows), (NOTE, *origin))
