"""The query that a layer would have, asked for while the layer before it runs (InfiniGen).

A layer's own code makes it, from the input of the layer before: norms, projections and rotation are
the model's, whatever they are. Only attention and what follows are not run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from oasis_sim.record.attention import LayerInput, layer_stack
from oasis_sim.record.backend import RecordedModel


class _Asked(Exception):
    """End a layer that is only asked for its query."""


class _Listener:
    """Take a layer's query and end the layer."""

    def __init__(self, queries: dict[int, Tensor]) -> None:
        self._queries = queries

    def attend(self, inputs: LayerInput) -> Tensor:
        """Keep the query, [Hq, R, d]."""
        self._queries[inputs.layer] = inputs.query
        raise _Asked


@contextlib.contextmanager
def rehearsed(model: RecordedModel, queries: dict[int, Tensor]) -> Iterator[None]:
    """Fill ``queries`` by layer, before each layer but the first runs."""
    decoder, name = layer_stack(model.module)
    listener, before = _Listener(queries), list[Any]()
    asking = False

    def ask(layer: Any, args: tuple[Any, ...], facts: dict[str, Any]) -> None:
        nonlocal asking
        if asking:
            return
        states = args[0] if args else facts["hidden_states"]
        if before:
            rest = {**facts, "oasis_pass": listener}
            rest.pop("hidden_states", None)
            asking = True
            with contextlib.suppress(_Asked):
                layer(before.pop(), *args[1:], **rest)
            asking = False
        before.append(states)

    hooks = [
        layer.register_forward_pre_hook(ask, with_kwargs=True) for layer in getattr(decoder, name)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
