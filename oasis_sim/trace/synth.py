"""Synthetic attention traces in the schema of recorded ones.

``synthesize`` is what ``trace synth`` and the shipped ``aime.jsonl`` come from. The same
parameters and seed give the same trace on every platform and NumPy version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oasis_sim.errors import InputError
from oasis_sim.trace.mass import MASS_CODE, encode_mass
from oasis_sim.trace.synth_parameters import SynthParameters
from oasis_sim.trace.synth_random import ExactRandom
from oasis_sim.trace.synth_scores import SCORE_UNIT, Scores, block_scores
from oasis_sim.trace.trace import NO_BLOCK, AttentionTrace

DRAFTER = "synthetic"
RECORDER = "oasis-sim trace synth"
_ABSENT = -(1 << 40)
_LOG_MASS_FLOOR = -200.0


def synthesize(
    parameters: SynthParameters,
    seed: int = 0,
    calibrated_to: Mapping[str, Any] | None = None,
) -> AttentionTrace:
    """Generate a synthetic trace with one drafter, ``synthetic``.

    ``calibrated_to`` goes into the header as it is: which published statistics the parameters
    were fitted to. Raises InputError for a negative seed.
    """
    if seed < 0:
        raise InputError(f"is {seed}", field="seed", fix="give a whole number of 0 or more")
    scores = block_scores(parameters, seed)
    position = parameters.context_tokens + np.arange(parameters.steps)
    token, draft = _tokens(parameters, scores.accepted, seed)
    shape = (parameters.steps, parameters.recorded_layers, parameters.recorded_heads, -1)
    block = parameters.block_tokens
    use = order_of(scores.true[:-1], position // block, parameters.stored_blocks)
    pred = order_of(scores.draft, (position + 1) // block, parameters.stored_blocks)
    return AttentionTrace(
        meta=_header(parameters, seed, scores.accepted, calibrated_to),
        position=position.astype(np.int32),
        token=token,
        use_order=use.reshape(shape),
        pred_order={DRAFTER: pred.reshape(shape)},
        accepted={DRAFTER: scores.accepted},
        draft_token={DRAFTER: draft},
        mass=_mass(parameters, scores, position // block, seed).reshape(shape),
    )


def order_of(
    scores: NDArray[np.int64], complete: NDArray[np.int64], stored: int
) -> NDArray[np.uint16]:
    """Return block ids by score descending, id ascending: uint16[T, G, stored].

    ``scores`` int64[T, G, NB]; step s lists blocks below ``complete[s]`` only.
    """
    steps, groups, blocks = scores.shape
    known = np.arange(blocks) < complete[:, None, None]
    key = np.where(known, -scores, -_ABSENT)
    order = np.argsort(key, axis=-1, kind="stable")[..., :stored].astype(np.uint16)
    out = np.full((steps, groups, stored), NO_BLOCK, dtype=np.uint16)
    listed = np.arange(order.shape[-1]) < complete[:, None]
    out[..., : order.shape[-1]] = np.where(listed[:, None, :], order, np.uint16(NO_BLOCK))
    return out


def _mass(
    p: SynthParameters, scores: Scores, complete: NDArray[np.int64], seed: int
) -> NDArray[np.uint8]:
    """Return attention mass codes, uint8[T, G, NB], rounded to multiples of ``mass_rounding``.

    Mass is a softmax (base 2) of the scores plus a fixed discrepancy per block: the order by
    upper bounds is close to the order by mass, not equal to it. The active block has a score of
    its own above the most popular block.
    """
    log_mass = scores.true[:-1] / SCORE_UNIT + scores.discrepancy
    blocks = np.arange(p.final_blocks)
    log_mass = np.where(blocks < complete[:, None, None], log_mass, _LOG_MASS_FLOOR)
    wobble = ExactRandom(seed, "local").normal(*log_mass.shape[:2])
    local = np.broadcast_to((blocks == complete[:, None])[:, None, :], log_mass.shape)
    log_mass = np.where(local, (p.local_score + 0.5 * wobble)[..., None], log_mass)
    mass = np.exp2(log_mass)
    mass /= mass.sum(axis=-1, keepdims=True)
    code = encode_mass(mass).astype(np.int64)
    coarse = (code + p.mass_rounding // 2) // p.mass_rounding * p.mass_rounding
    return np.minimum(coarse, 255).astype(np.uint8)


def _tokens(
    p: SynthParameters, accepted: NDArray[np.uint8], seed: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return random token ids int32[T + 1] and the draft's ids int32[T] that match ``accepted``."""
    token = (ExactRandom(seed, "token").uniform(p.steps + 1) * p.vocab).astype(np.int32)
    shift = 1 + (ExactRandom(seed, "draft-token").uniform(p.steps) * (p.vocab - 1)).astype(np.int64)
    wrong = (token[1:] + shift) % p.vocab
    return token, np.where(accepted == 1, token[1:], wrong).astype(np.int32)


def _header(
    p: SynthParameters,
    seed: int,
    accepted: NDArray[np.uint8],
    calibrated_to: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the trace header; it is enough to generate the trace again."""
    return {
        "format": "oasis-trace",
        "version": 1,
        "origin": "synthetic",
        "name": p.name,
        "model": {
            "name": p.model_name,
            "layers": p.model_layers,
            "kv_heads": p.kv_heads,
            "query_heads": p.query_heads,
            "head_dim": p.head_dim,
        },
        "layer_ids": list(p.layer_ids()),
        "layer_span": [None] * p.recorded_layers,
        "block_tokens": p.block_tokens,
        "prompt_tokens": p.context_tokens,
        "steps": p.steps,
        "stored_blocks": p.stored_blocks,
        "aggregation": {"bound": "max", "mass": "mean"},
        "mass_code": MASS_CODE,
        "drafters": {DRAFTER: {"accepted": float(accepted.mean())}},
        "text": {"name": "none (synthetic)", "licence": "CC0-1.0"},
        "recorder": RECORDER,
        "synthetic": {
            "seed": seed,
            "parameters": p.to_dict(),
            "calibrated_to": dict(calibrated_to or {}),
        },
    }
