"""Whether a valid trace also makes sense: what the schema cannot refuse but a person would ask."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from oasis_sim.fileio import printable
from oasis_sim.trace.mass import decode_mass
from oasis_sim.trace.trace import NO_BLOCK, AttentionTrace

# A code step is 4 %, and writers may round codes further to make files smaller.
MASS_RANGE = (0.8, 1.25)
ACCEPTANCE_TOLERANCE = 0.005


def doubts(trace: AttentionTrace) -> tuple[str, ...]:
    """Return what looks wrong in a trace, the reader's warnings first; empty when nothing does."""
    return (*trace.warnings, *_positions(trace), *_drafters(trace), *_orders(trace), *_mass(trace))


def fewest_ranked(trace: AttentionTrace) -> int:
    """Return the blocks that every stored order ranks: budgets beyond need more.

    Orders that end because the context has no more complete blocks do not count as short.
    """
    fewest = trace.stored_blocks
    for orders in (trace.use_order, *trace.pred_order.values()):
        complete = trace.position.astype(np.int64) // trace.block_tokens
        for step in range(trace.steps):
            ranked = int((orders[step] != NO_BLOCK).sum(axis=-1).min())
            if ranked < complete[step]:
                fewest = min(fewest, ranked)
    return fewest


def _positions(trace: AttentionTrace) -> Iterator[str]:
    """Doubt jumps and a start away from the prompt's end."""
    jumps = int((np.diff(trace.position) != 1).sum())
    if jumps:
        yield f"position: {jumps} steps advance by more than one token"
    prompt = trace.meta.get("prompt_tokens")
    if prompt and prompt != trace.position[0]:
        yield f"position: starts at {trace.position[0]}, the prompt has {prompt} tokens"


def _drafters(trace: AttentionTrace) -> Iterator[str]:
    """Doubt acceptance flags that contradict the tokens or the header."""
    following = trace.token[1:]
    described = trace.meta.get("drafters") or {}
    for name, flags in trace.accepted.items():
        shown = printable(name, 60)
        draft = trace.draft_token.get(name)
        if draft is not None:
            wrong = int(((draft == following) != flags.astype(bool))[following >= 0].sum())
            if wrong:
                yield f"accepted.{shown}: {wrong} flags contradict draft_token and token"
        said = (described.get(name) or {}).get("accepted")
        if said is not None and abs(said - flags.mean()) > ACCEPTANCE_TOLERANCE:
            yield f"accepted.{shown}: the header says {said:.3f}, the flags {flags.mean():.3f}"


def _orders(trace: AttentionTrace) -> Iterator[str]:
    """Doubt orders that end although more blocks exist."""
    fewest = fewest_ranked(trace)
    if fewest < trace.stored_blocks:
        yield f"orders: some rank {fewest} blocks, the header says {trace.stored_blocks}"


def _mass(trace: AttentionTrace) -> Iterator[str]:
    """Doubt attention mass that does not add up to one."""
    if trace.mass is None:
        yield "mass: none is stored; quality proxies cannot be computed"
        return
    if (trace.meta.get("aggregation") or {}).get("mass", "mean") != "mean":
        return
    totals = [decode_mass(step).sum(axis=-1) for step in trace.mass]
    low, high = min(t.min() for t in totals), max(t.max() for t in totals)
    if low < MASS_RANGE[0] or high > MASS_RANGE[1]:
        yield f"mass: adds up to {low:.3f} .. {high:.3f} per head, not to 1"
