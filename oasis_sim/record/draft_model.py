"""A drafter that is a model of its own: smaller, with the same tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from oasis_sim.errors import InputError
from oasis_sim.record.attention import CausalPass, KeyValueStore, run_pass
from oasis_sim.record.backend import RecordedModel
from oasis_sim.record.probe import probe
from oasis_sim.record.progress import ProgressCallback
from oasis_sim.record.trajectory import Trajectory

_CHUNK_TOKENS = 256


@dataclass(frozen=True, eq=False)
class ModelDrafter:
    """Read the trajectory with another model; its likeliest next token is the draft.

    The draft model sees the whole context by full attention. Memory: its weights, its keys and
    values, and one chunk.
    """

    draft_model: RecordedModel

    @property
    def name(self) -> str:
        """Return the name of the draft's orders in the trace."""
        return f"model-{self.draft_model.name.replace('/', '-')}"

    def check(self, model: RecordedModel) -> None:
        """Raise InputError when the two models do not read the same tokens."""
        draft = self.draft_model
        if draft.tokenizer_sha256 != model.tokenizer_sha256:
            raise InputError(
                f"has another vocabulary than {model.name}: its drafts would be other tokens",
                file=draft.file,
                field="drafter",
                fix="use a draft model with the same tokenizer",
            )

    def draft(
        self, model: RecordedModel, path: Trajectory, progress: ProgressCallback
    ) -> list[int]:
        """Return the draft model's likeliest next tokens.

        Raises InputError when the trajectory does not fit the draft model.
        """
        draft, end = self.draft_model, len(path.tokens) - 1
        if end > draft.max_positions:
            raise InputError(
                f"reads {draft.max_positions} tokens at most, the recording has {end}",
                file=draft.file,
                field="drafter",
                fix="use a shorter prompt or another draft model",
            )
        probe(draft, path.tokens[: path.prompt_tokens])
        vocab = min(draft.vocab, model.vocab)
        store = KeyValueStore(draft.layers, end)
        head = draft.module.get_output_embeddings()
        ids = torch.tensor(path.tokens[:-1])
        drafts: list[int] = []
        for start in range(0, end, _CHUNK_TOKENS):
            progress(f"drafts of {self.name}", start, end)
            stop = min(start + _CHUNK_TOKENS, end)
            attention = CausalPass(store, keep_queries=False)
            here = torch.arange(start, stop)
            states = run_pass(draft.module, ids[start:stop], here, attention)
            rows = states[max(path.prompt_tokens - start, 0) :]
            if len(rows):
                drafts += head(rows)[:, :vocab].argmax(dim=-1).tolist()
        progress(f"drafts of {self.name}", end, end)
        return drafts

    def header(self) -> dict[str, Any]:
        """Say which model guesses."""
        return {"method": "draft model", "model": self.draft_model.header()}
