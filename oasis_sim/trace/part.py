"""Parts of a trace: some of its steps, layers and heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oasis_sim.trace.trace import AttentionTrace


def select_part(
    trace: AttentionTrace,
    *,
    steps: slice | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> AttentionTrace:
    """Return a trace of some steps, layers and heads (indexes) of another; None keeps all."""
    span = range(trace.steps)[steps or slice(None)]
    layer_list = list(range(trace.layers) if layers is None else layers)
    head_list = list(range(trace.kv_heads) if heads is None else heads)
    rows = slice(span.start, span.stop)

    def cut(array: NDArray[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(array[rows][:, layer_list][:, :, head_list])

    meta = dict(trace.meta)
    spans = meta.get("layer_span") or [None] * trace.layers
    meta["layer_ids"] = [trace.layer_ids[layer] for layer in layer_list]
    meta["layer_span"] = [spans[layer] for layer in layer_list]
    meta["steps"] = len(span)
    return AttentionTrace(
        meta=meta,
        position=trace.position[rows],
        token=trace.token[span.start : span.stop + 1],
        use_order=cut(trace.use_order),
        pred_order={name: cut(order) for name, order in trace.pred_order.items()},
        accepted={name: flags[rows] for name, flags in trace.accepted.items()},
        draft_token={name: tokens[rows] for name, tokens in trace.draft_token.items()},
        mass=None if trace.mass is None else cut(trace.mass),
        warnings=trace.warnings,
    )
