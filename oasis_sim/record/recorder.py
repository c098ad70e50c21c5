"""Record the attention traces of a loaded model on a prompt."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oasis_sim.errors import InputError
from oasis_sim.record.attending import LibraryAttention, RecordBackend
from oasis_sim.record.backend import RecordedModel
from oasis_sim.record.checkpoint import FolderParts, Parts
from oasis_sim.record.choose_drafters import choose_drafters
from oasis_sim.record.drafters import Drafter
from oasis_sim.record.header import RecordingFacts, build_header
from oasis_sim.record.options import FULL_LAYERS, RecordOptions, parse_layers
from oasis_sim.record.progress import ProgressCallback, no_progress
from oasis_sim.record.prompt import Prompt
from oasis_sim.record.rows import Ids, true_mass
from oasis_sim.record.trajectory import Trajectory, follow
from oasis_sim.trace import NO_BLOCK, AttentionTrace, encode_mass


@dataclass(frozen=True, eq=False)
class Recording:
    """Hold a trace, and the attention mass before it was rounded to 8 bits, [T, L, H, NB]."""

    trace: AttentionTrace
    exact_mass: NDArray[np.float64] | None


def record_traces(  # noqa: PLR0913 - what to record, what to call it, how to go about it
    model: RecordedModel,
    prompt: Prompt,
    options: RecordOptions,
    *,
    names: dict[int, str],
    command: str = "",
    checkpoint: Path | None = None,
    progress: ProgressCallback = no_progress,
    backend: RecordBackend | None = None,
) -> Iterator[Recording]:
    """Record a model's attention on a prompt once, and yield one trace per block size.

    ``names`` maps block sizes to the traces' names; model and drafters run once for all of them
    but for the draft rows, whose working set consists of blocks. What is finished is kept in the
    folder ``checkpoint`` until the last trace has been taken. ``backend`` attends decoded rows and
    orders their blocks; without one the library's attention does.
    Raises InputError when the options do not fit the model or the prompt, and when the model does
    not understand the prompt (perplexity), hides its attention or ends too early.
    """
    views = [replace(options, block_tokens=size) for size in names]
    backend = backend or LibraryAttention()
    for view in views:
        check_room(model, prompt, view)
        backend.check(model, view)
    if options.layers.strip() != FULL_LAYERS:
        parse_layers(options.layers, model.layers)
    drafters = choose_drafters(options.drafters, model)
    about = _identity(model, prompt, options, names, drafters) | backend.header()
    parts = Parts() if checkpoint is None else FolderParts(checkpoint, about)
    # The library may hold other gradients-on code in this process: switch off here only.
    with torch.inference_mode():
        path = follow(model, prompt, options, progress, parts, backend)
        layers = kept_layers(options.layers, path)
        drafts = {each.name: each.draft(model, path, progress) for each in drafters}
    session = _Session(model, prompt, path, layers, drafters, drafts, backend)
    for view in views:
        with torch.inference_mode():
            found = session.record(view, names[view.block_tokens], command, parts, progress)
        yield found
    parts.remove()


def _identity(
    model: RecordedModel,
    prompt: Prompt,
    options: RecordOptions,
    names: dict[int, str],
    drafters: Sequence[Drafter],
) -> dict[str, Any]:
    """Return what makes a recording the same bytes: its checkpoint may serve no other."""
    tokens = json.dumps([prompt.tokens, prompt.following]).encode()
    return {
        "model": model.header(),
        "device": model.device,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "tokens_sha256": hashlib.sha256(tokens).hexdigest(),
        "options": asdict(options),
        "block_sizes": list(names),
        "drafters": {drafter.name: drafter.header() for drafter in drafters},
    }


def kept_layers(spec: str, path: Trajectory) -> tuple[int, ...]:
    """Return the layers of an option; ``full`` means those that attend to the whole context."""
    if spec.strip() != FULL_LAYERS:
        return parse_layers(spec, len(path.spans))
    full = tuple(layer for layer, span in enumerate(path.spans) if span is None)
    if not full:
        raise InputError(
            "every layer attends to a sliding window only", field="layers", fix="use all"
        )
    return full


@dataclass(frozen=True, eq=False)
class _Session:
    """Hold what the traces of one recording share."""

    model: RecordedModel
    prompt: Prompt
    path: Trajectory
    layers: Sequence[int]
    drafters: Sequence[Drafter]
    drafts: dict[str, list[int]]
    backend: RecordBackend

    def record(
        self,
        options: RecordOptions,
        name: str,
        command: str,
        parts: Parts,
        progress: ProgressCallback,
    ) -> Recording:
        """Compute the rows for one block size and put the trace together."""
        path = self.path
        orders, drafted = self.backend.orders(
            self.model, path, self.layers, self.drafts, options, parts, progress
        )
        mass = true_mass(path, self.layers, options, progress)
        stored = min(options.stored_blocks or orders.shape[-1], orders.shape[-1])
        token = np.array(path.tokens[path.prompt_tokens :], dtype=np.int32)
        draft_token = {key: np.array(row, dtype=np.int32) for key, row in self.drafts.items()}
        accepted = {key: (row == token[1:]).astype(np.uint8) for key, row in draft_token.items()}
        facts = RecordingFacts(
            name=name,
            layers=tuple(self.layers),
            spans=tuple(path.spans[layer] for layer in self.layers),
            prompt_tokens=path.prompt_tokens,
            steps=path.steps,
            stored_blocks=stored,
            perplexity=path.perplexity,
            drafters={
                each.name: {"accepted": float(accepted[each.name].mean()), **each.header()}
                for each in self.drafters
            },
            command=command,
            attention=self.backend.header(),
        )
        trace = AttentionTrace(
            meta=build_header(self.model, self.prompt, options, facts),
            position=path.positions.cpu().numpy().astype(np.int32),
            token=token,
            use_order=_cut(orders, stored),
            pred_order={key: _cut(order, stored) for key, order in drafted.items()},
            accepted=accepted,
            draft_token=draft_token,
            mass=None if mass is None else encode_mass(mass),
        )
        return Recording(trace, mass)


def _cut(orders: Ids, stored: int) -> Ids:
    return orders[..., :stored]


def check_room(model: RecordedModel, prompt: Prompt, options: RecordOptions) -> None:
    """Raise InputError when prompt and steps do not fit the model or the trace format."""
    count, end = len(prompt.tokens), len(prompt.tokens) + options.steps
    least = max(2, options.block_tokens)
    if count < least:
        raise InputError(
            f"the prompt has {count} tokens, fewer than one block",
            field="prompt_tokens",
            fix=f"use at least {least}",
        )
    if end > model.max_positions:
        raise InputError(
            f"{count} prompt tokens and {options.steps} steps exceed the model's "
            f"{model.max_positions} positions",
            field="prompt_tokens",
            fix=f"use at most {max(model.max_positions - options.steps, 0)} prompt tokens",
        )
    if end // options.block_tokens >= NO_BLOCK:
        raise InputError(
            f"{end} tokens are more blocks than a trace can number",
            field="block_tokens",
            fix="use larger blocks",
        )
    if options.trajectory == "text" and len(prompt.following) <= options.steps:
        raise InputError(
            "the text does not go on after the prompt",
            field="trajectory",
            fix="use greedy or sample",
        )
    ids = (*prompt.tokens, *prompt.following)
    if min(ids) < 0 or max(ids) >= model.vocab:
        raise InputError("the tokenizer makes tokens that the model lacks", file=model.file)
