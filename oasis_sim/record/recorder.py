"""Record the attention trace of a loaded model on a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oasis_sim.errors import InputError
from oasis_sim.record.attention import RowsPass, run_pass
from oasis_sim.record.backend import RecordedModel
from oasis_sim.record.drafters import ngram_drafts, skip_drafts
from oasis_sim.record.header import RecordingFacts, build_header
from oasis_sim.record.options import RecordOptions, parse_drafter, parse_layers
from oasis_sim.record.orders import (
    block_extremes,
    block_mass,
    bound_scores,
    listed_blocks,
    order_blocks,
)
from oasis_sim.record.progress import ProgressCallback, no_progress
from oasis_sim.record.prompt import Prompt
from oasis_sim.record.trajectory import Trajectory, follow
from oasis_sim.record.working_set import DraftWorkingSets, WorkingSetRule
from oasis_sim.trace import NO_BLOCK, AttentionTrace, encode_mass

_DRAFT_ROWS = 64


@dataclass(frozen=True, eq=False)
class Recording:
    """Hold a trace, and the attention mass before it was rounded to 8 bits, [T, L, H, NB]."""

    trace: AttentionTrace
    exact_mass: NDArray[np.float64] | None


@dataclass(frozen=True, eq=False)
class _Draft:
    """Hold one drafter's tokens, int64 [T], and the orders of its rows, uint16 [T, L, H, N]."""

    tokens: NDArray[np.int64]
    orders: NDArray[np.uint16]


def record_trace(
    model: RecordedModel,
    prompt: Prompt,
    options: RecordOptions,
    *,
    name: str,
    progress: ProgressCallback = no_progress,
) -> Recording:
    """Record a model's attention on a prompt, step by step, and the views of its drafters.

    Raises InputError when the options do not fit the model or the prompt, and when the model
    does not understand the prompt (perplexity), hides its attention or ends too early.
    """
    layers = parse_layers(options.layers, model.layers)
    drafters = dict(parse_drafter(drafter, model.layers) for drafter in options.drafters)
    check_room(model, prompt, options)
    # The library may hold other gradients-on code in this process: switch off here only.
    with torch.inference_mode():
        path = follow(model, prompt, options, progress)
        orders, mass = _true_rows(path, layers, options, progress)
        drafts = {
            key: _draft_rows(model, path, skipped, layers, options, _Stage(progress, key))
            for key, skipped in drafters.items()
        }
    token = np.array(path.tokens[path.prompt_tokens :], dtype=np.int32)
    accepted = {key: (draft.tokens == token[1:]).astype(np.uint8) for key, draft in drafts.items()}
    stored = min(options.stored_blocks or orders.shape[-1], orders.shape[-1])
    facts = RecordingFacts(
        name=name,
        layers=layers,
        spans=tuple(path.spans[layer] for layer in layers),
        prompt_tokens=path.prompt_tokens,
        steps=path.steps,
        stored_blocks=stored,
        perplexity=path.perplexity,
        accepted={key: float(flags.mean()) for key, flags in accepted.items()},
    )
    trace = AttentionTrace(
        meta=build_header(model, prompt, options, facts),
        position=path.positions.cpu().numpy().astype(np.int32),
        token=token,
        use_order=orders[..., :stored],
        pred_order={key: draft.orders[..., :stored] for key, draft in drafts.items()},
        accepted=accepted,
        draft_token={key: draft.tokens.astype(np.int32) for key, draft in drafts.items()},
        mass=None if mass is None else encode_mass(mass),
    )
    return Recording(trace, mass)


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


def _true_rows(
    path: Trajectory, layers: Sequence[int], options: RecordOptions, progress: ProgressCallback
) -> tuple[NDArray[np.uint16], NDArray[np.float64] | None]:
    """Return the true queries' orders, [T, L, H, N], and the attention mass, [T, L, H, NB]."""
    orders: list[NDArray[np.uint16]] = []
    mass: list[NDArray[np.float64]] = []
    for done, layer in enumerate(layers):
        progress("orders and mass", done, len(layers))
        orders.append(_ids(_layer_orders(path, layer, path.steps, options.block_tokens)))
        if options.mass:
            weights = block_mass(
                path.queries[layer],
                path.store.keys(layer),
                path.positions,
                scaling=path.scalings[layer],
                block_tokens=options.block_tokens,
                span=path.spans[layer],
            )
            mass.append(weights.cpu().numpy())
    progress("orders and mass", len(layers), len(layers))
    return np.stack(orders, axis=1), np.stack(mass, axis=1) if mass else None


def _layer_orders(path: Trajectory, layer: int, steps: int, block_tokens: int) -> Tensor:
    """Return a layer's orders by the true queries of the first steps, int64 [steps, H, N]."""
    low, high = block_extremes(path.store.keys(layer), block_tokens)
    parts = []
    for start in range(0, steps, _DRAFT_ROWS):
        rows = slice(start, min(start + _DRAFT_ROWS, steps))
        scores = bound_scores(path.queries[layer][:, rows], low, high)
        listed = listed_blocks(path.positions[rows], low.shape[1], block_tokens, path.spans[layer])
        parts.append(order_blocks(scores, listed))
    return torch.cat(parts)


def _draft_rows(
    model: RecordedModel,
    path: Trajectory,
    skipped: Sequence[int],
    layers: Sequence[int],
    options: RecordOptions,
    stage: _Stage,
) -> _Draft:
    """Draft a token per step, then run the drafts through the whole model, sparsely.

    The rows of one drafter are independent but for the working set, which a row takes from the
    row before in the same layer: they go through the model together.
    """
    rule = WorkingSetRule(
        block_tokens=options.block_tokens,
        chosen_blocks=options.chosen_blocks,
        sink_blocks=options.sink_blocks,
        recent_blocks=options.recent_blocks,
    )
    first = {
        layer: _layer_orders(path, layer, 1, options.block_tokens)[0]
        for layer in range(model.layers)
    }
    sets = DraftWorkingSets(path.store, rule, first)
    tokens: list[int] = []
    orders: list[NDArray[np.uint16]] = []
    for start in range(0, path.steps, _DRAFT_ROWS):
        stage.show(start, path.steps)
        rows = range(start, min(start + _DRAFT_ROWS, path.steps))
        drafts = _draft_tokens(model, path, skipped, rows)
        positions = path.positions[rows.start : rows.stop] + 1
        sets.start_batch(positions)
        attention = RowsPass(path.store, positions, sets)
        run_pass(model.module, torch.tensor(drafts), positions, attention)
        orders.append(np.stack([_ids(sets.orders[layer]) for layer in layers], axis=1))
        tokens.extend(drafts)
    stage.show(path.steps, path.steps)
    return _Draft(np.array(tokens, dtype=np.int64), np.concatenate(orders))


def _draft_tokens(
    model: RecordedModel, path: Trajectory, skipped: Sequence[int], rows: range
) -> list[int]:
    """Return the drafts of some steps: by skipping layers, or by n-gram when none is skipped."""
    first = path.prompt_tokens
    if not skipped:
        return ngram_drafts(path.tokens, first + rows.start, len(rows))
    here = path.positions[rows.start : rows.stop]
    tokens = torch.tensor(path.tokens[first + rows.start : first + rows.stop])
    return skip_drafts(model.module, path.store, tokens, here, skipped)


def _ids(orders: Tensor) -> NDArray[np.uint16]:
    """Return orders with the trace's mark for no block, uint16."""
    ids = np.asarray(torch.where(orders < 0, NO_BLOCK, orders).cpu())
    return ids.astype(np.uint16)


@dataclass(frozen=True)
class _Stage:
    """Report the progress of one drafter."""

    progress: ProgressCallback
    drafter: str

    def show(self, done: int, total: int) -> None:
        """Tell how many draft rows are done."""
        self.progress(f"draft rows of {self.drafter}", done, total)
