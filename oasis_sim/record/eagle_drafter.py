"""A drafter that is an EAGLE-3 head on the recorded model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oasis_sim.record.attention import ReplayPass, layer_stack, run_pass
from oasis_sim.record.backend import RecordedModel
from oasis_sim.record.eagle import EagleHead
from oasis_sim.record.progress import ProgressCallback
from oasis_sim.record.trajectory import Trajectory

_CHUNK_TOKENS = 256


@dataclass(frozen=True, eq=False)
class EagleDrafter:
    """Guess by an EAGLE-3 head, which reads the model's states at the tokens before.

    When the draft of the token after position p is needed, the model has processed the tokens up
    to p - 1: the last pair is the token at p and the states at p - 1. The model's rows are run
    again over the keys and values that are kept, so that no states are stored.
    """

    head: EagleHead
    label: str
    sha256: str

    @property
    def name(self) -> str:
        """Return the name of the draft's orders in the trace."""
        return f"eagle3-{self.label}"

    def draft(
        self, model: RecordedModel, path: Trajectory, progress: ProgressCallback
    ) -> list[int]:
        """Return the head's likeliest next tokens."""
        last = len(path.tokens) - 2  # the last pair is of this token and the states before it
        ids = torch.tensor(path.tokens, device=model.module.device)
        store = self.head.new_store(last)
        drafts: list[int] = []
        for start in range(0, last, _CHUNK_TOKENS):
            progress(f"drafts of {self.name}", start, last)
            end = min(start + _CHUNK_TOKENS, last)
            positions = torch.arange(start, end, device=ids.device)
            with tapped(model.module, self.head.shape.taps) as taps:
                replay = ReplayPass(path.store, positions)
                run_pass(model.module, ids[start:end], positions, replay)
            states = torch.cat([taps[tap] for tap in self.head.shape.taps], dim=-1)
            after = ids[start + 1 : end + 1]
            states = self.head.states(after, states, positions, store)
            rows = states[max(path.prompt_tokens - 1 - start, 0) :]
            if len(rows):
                drafts += self.head.likeliest(rows)
        progress(f"drafts of {self.name}", last, last)
        return drafts

    def header(self) -> dict[str, Any]:
        """Say which head guesses."""
        return {"method": "EAGLE-3 head", "sha256": self.sha256}


@contextlib.contextmanager
def tapped(module: Any, layers: tuple[int, ...]) -> Iterator[dict[int, Tensor]]:
    """Collect the outputs of some layers of a pass, [Q, hidden] by layer."""
    found: dict[int, Tensor] = {}

    def keep(layer: int) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            found[layer] = (output[0] if isinstance(output, tuple) else output)[0]

        return hook

    decoder, name = layer_stack(module)
    stack = getattr(decoder, name)
    handles = [stack[layer].register_forward_hook(keep(layer)) for layer in sorted(set(layers))]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
