"""Prediction accuracy by layer, read off a trace: Figures 4 and 6.

Agreement of a predictor with the next query at `top` blocks: the share of the `top` best blocks
of the true query of step s + 1 that are among the `top` best blocks predicted at step s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from oasis_sim.errors import InputError, UsageError
from oasis_sim.residency.predict import DRAFT, PREVIOUS, draft_order
from oasis_sim.trace.trace import NO_BLOCK, AttentionTrace, Order

PREDICTORS = (DRAFT, PREVIOUS)
MEAN = "mean"


def agreement_pct(trace: AttentionTrace, predictor: str, top: int) -> npt.NDArray[np.float64]:
    """Return the agreement of a predictor per recorded layer in percent, float64[L].

    A mean over steps and KV heads. Raises InputError for a trace of one step, one that stores
    fewer than `top` blocks, or one so short that `top` blocks are all there are.
    """
    if trace.steps < 2:
        raise InputError("one step predicts nothing", file=trace.name, field="steps")
    blocks = int(trace.position[0]) // trace.block_tokens
    if blocks <= top or trace.stored_blocks < top:
        raise InputError(
            f"the best {top} blocks need more than {top} complete blocks and {top} stored ones; "
            f"the trace starts with {blocks} and stores {trace.stored_blocks}",
            file=trace.name,
            field="prompt_tokens" if blocks <= top else "stored_blocks",
            fix="record a longer context with more stored blocks",
        )
    orders = draft_order(trace) if predictor == DRAFT else trace.use_order
    hits = _hits(trace.use_order[1:, ..., :top], orders[:-1, ..., :top])
    return np.asarray(100.0 * hits.mean(axis=(0, 2)) / top, dtype=np.float64)


def _hits(true: Order, predicted: Order) -> npt.NDArray[np.int64]:
    """Count the predicted blocks that are true, int64[T, L, H]; places without a block miss."""
    size = int(max(np.where(order == NO_BLOCK, 0, order).max() for order in (true, predicted))) + 2
    nothing = size - 1
    marked = np.zeros((*true.shape[:3], size), dtype=np.bool_)
    np.put_along_axis(marked, _index(true, nothing), values=True, axis=-1)
    marked[..., nothing] = False
    found = np.take_along_axis(marked, _index(predicted, nothing), axis=-1)
    return np.asarray(found.sum(axis=-1), dtype=np.int64)


def _index(order: Order, nothing: int) -> npt.NDArray[np.int64]:
    return np.where(order == NO_BLOCK, nothing, order).astype(np.int64)


def agreement_by_layer(
    traces: Sequence[AttentionTrace], predictor: str, top: int
) -> Mapping[int, float | None]:
    """Return the agreement of every layer of the traced model, None where none is recorded.

    Layers that several traces record are averaged; sliding-window layers choose no blocks and
    stay empty. Raises UsageError for traces of different models.
    """
    layers = {trace.model_layers for trace in traces}
    if len(layers) != 1 or len({str(trace.meta["model"]["name"]) for trace in traces}) != 1:
        raise UsageError("accuracy by layer needs traces of one model")
    found: dict[int, list[float]] = {layer: [] for layer in range(layers.pop())}
    for trace in traces:
        values = agreement_pct(trace, predictor, top)
        for index in trace.full_layers:
            found[trace.layer_ids[index]].append(float(values[index]))
    return {layer: sum(each) / len(each) if each else None for layer, each in found.items()}


def mean_of(values: Mapping[int, float | None]) -> float | None:
    """Return the mean over the layers that have a value."""
    known = [value for value in values.values() if value is not None]
    return sum(known) / len(known) if known else None


def traced_model(traces: Sequence[AttentionTrace]) -> str:
    """Return the name of the traced model."""
    return str(traces[0].meta["model"]["name"])
