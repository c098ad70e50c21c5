"""Block scores of a synthetic trace: how popular blocks are, and how that moves.

The model is described in docs/synthetic-traces.md. Scores are whole numbers of 2^-12 of a score
unit, so rounding in the last bit of a float cannot change an order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oasis_sim.trace.synth_parameters import SynthParameters
from oasis_sim.trace.synth_random import ExactRandom

Float = NDArray[np.float64]
SCORE_UNIT = 4096
EXCHANGE_RANKS = 256
_TOP_RANK = 24.0


@dataclass(frozen=True, eq=False)
class Scores:
    """Hold integer block scores of every step, heads flattened to [T + 1, G, NB]."""

    true: NDArray[np.int64]
    draft: NDArray[np.int64]
    accepted: NDArray[np.uint8]
    discrepancy: Float


def block_scores(p: SynthParameters, seed: int) -> Scores:
    """Return the true scores of steps 0 .. T and the draft's view of steps 1 .. T."""
    ranks = _popularity_ranks(p, seed)
    top = 1.0 / (1.0 + (ranks / _TOP_RANK) ** 2)
    base = -p.profile_exponent * np.log2(1.0 + ranks / p.profile_knee)
    base[:, 0] = np.maximum(base[:, 0], p.sink_score)
    drift = _drift(p, seed)
    fast = _flicker(p, seed) * (1.0 + (p.flicker_top_factor - 1.0) * top)
    true = base + drift + fast
    static = np.flatnonzero(head_classes(p, seed).static)
    true[:, static] = _exchanged(p, seed, (base + drift[0])[static]) + (drift - drift[0])[:, static]
    true += _recency(p)[:, None, :]
    accepted = ExactRandom(seed, "accepted").uniform(p.steps) < p.draft_accepted_share
    noise = _draft_noise(p, seed) * (1.0 + (p.draft_top_factor - 1.0) * top)
    noise *= np.where(accepted, 1.0, p.rejected_noise_factor)[:, None, None]
    groups = p.recorded_layers * p.recorded_heads
    discrepancy = p.mass_noise * ExactRandom(seed, "mass").normal(groups, p.final_blocks)
    return Scores(
        true=_quantise(true),
        draft=_quantise(true[1:] + noise),
        accepted=accepted.astype(np.uint8),
        discrepancy=discrepancy,
    )


def _quantise(scores: Float) -> NDArray[np.int64]:
    return np.rint(scores * SCORE_UNIT).astype(np.int64)


def _popularity_ranks(p: SynthParameters, seed: int) -> Float:
    """Return each block's popularity rank per head, float64[G, NB] (0 = most popular)."""
    layers, heads, blocks = p.recorded_layers, p.recorded_heads, p.final_blocks
    shared = ExactRandom(seed, "popularity-layer").normal(layers, 1, blocks)
    own = ExactRandom(seed, "popularity-head").normal(layers, heads, blocks)
    mixed = _in_common(p, shared, own)
    order = np.argsort(_quantise(-mixed), axis=-1, kind="stable")
    ranks = np.argsort(order, axis=-1, kind="stable")
    return ranks.reshape(layers * heads, blocks).astype(np.float64)


def _in_common(p: SynthParameters, shared: Float, own: Float) -> Float:
    """Mix what the heads of a layer share with what each has of its own, to variance 1."""
    return np.asarray(
        shared * np.sqrt(p.head_correlation) + own * np.sqrt(1.0 - p.head_correlation)
    )


def _recency(p: SynthParameters) -> Float:
    """Return the boost of young blocks, float64[T + 1, NB]; age is in blocks."""
    now = (p.context_tokens + np.arange(p.steps + 1)) / p.block_tokens
    age = np.maximum(now[:, None] - 1.0 - np.arange(p.final_blocks), 0.0)
    return np.asarray(p.recency_boost / (1.0 + age / p.recency_blocks))


def _drift(p: SynthParameters, seed: int) -> Float:
    """Return slow offsets, float64[T + 1, G, NB]: straight lines between random knots."""
    knots = p.steps // p.drift_steps + 2
    layers, heads, blocks = p.recorded_layers, p.recorded_heads, p.final_blocks
    shared = ExactRandom(seed, "drift-layer").normal(knots, layers, 1, blocks)
    own = ExactRandom(seed, "drift-head").normal(knots, layers, heads, blocks)
    values = p.drift * _in_common(p, shared, own).reshape(knots, layers * heads, blocks)
    step = np.arange(p.steps + 1)
    left, share = step // p.drift_steps, (step % p.drift_steps) / p.drift_steps
    weight = share[:, None, None]
    return np.asarray(values[left] * (1.0 - weight) + values[left + 1] * weight)


@dataclass(frozen=True, eq=False)
class HeadClasses:
    """Say how restless each head is, arrays [L, H].

    ``frozen`` heads are static ones that exchange nothing. ``refresh`` is a volatile head's
    probability of a new fast offset, ``amplitude`` the offsets' factor.
    """

    static: NDArray[np.bool_]
    frozen: NDArray[np.bool_]
    refresh: Float
    amplitude: Float


def head_classes(p: SynthParameters, seed: int) -> HeadClasses:
    """Return every head's class and its refresh probability before the step's intensity.

    Each layer gets an even spread of the range from static to volatile, each head a distinct
    place in it, so that any subset of layers is close to the whole.
    """
    layers, heads = p.recorded_layers, p.recorded_heads
    random = ExactRandom(seed, "volatility")
    place = np.empty((layers, heads))
    strata = [random.permutation(layers) for _ in range(heads)]
    for layer in range(layers):
        for slot, head in enumerate(random.permutation(heads)):
            place[layer, head] = (slot + (strata[slot][layer] + 0.5) / layers) / heads
    static = place < p.static_share
    within = np.clip((place - p.static_share) / max(1.0 - p.static_share, 1e-9), 0.0, 1.0)
    unrest = within**p.volatile_skew
    spread = p.volatile_refresh_high - p.volatile_refresh_low
    tilt = 2.0 * (random.permutation(layers) + 0.5) / layers - 1.0
    refresh = (p.volatile_refresh_low + spread * unrest) * (1.0 + p.layer_spread * tilt)[:, None]
    return HeadClasses(
        static,
        place < p.frozen_share,
        refresh * p.volatility,
        1.0 + p.flicker_volatile_gain * unrest,
    )


def _exchanged(p: SynthParameters, seed: int, start: Float) -> Float:
    """Return the scores of static heads, float64[T + 1, heads, NB], around those of `start`.

    An exchange swaps the scores of two blocks, so one enters any prefix of the order for one that
    leaves it. The better partner's rank is spread evenly over the best 256 from step to step, the
    other's is up to ``exchange_reach`` times as large: every prefix changes by about the same
    share. ``exchange_pairs`` pairs are swapped at a time: each new pair is followed by the return
    of the oldest, so that a head stays near its popularity however long the trace.
    """
    blocks = start.shape[-1]
    random = ExactRandom(seed, "exchange")
    classes = head_classes(p, seed)
    frozen = classes.frozen[classes.static]
    span = min(EXCHANGE_RANKS, blocks)
    swaps = p.static_exchanges * p.volatility
    out = np.repeat(start[None], p.steps + 1, axis=0)
    for head in np.flatnonzero(~frozen):
        scores, pairs = start[head].copy(), deque[tuple[int, int]]()
        done = random.uniform(1).item()
        for step in range(p.steps + 1):
            count = int(done + swaps) - int(done) if step else p.exchange_pairs
            done += swaps if step else 0.0
            better = span * (np.arange(count) + random.uniform(count)) / max(count, 1)
            reach = 1.0 + (p.exchange_reach - 1.0) * random.uniform(count)
            worse = np.minimum((better + 1.0) * reach, blocks - 1.0).astype(np.int64)
            holder = np.argsort(_quantise(-scores), kind="stable")
            for one, other in zip(holder[better.astype(np.int64)], holder[worse], strict=True):
                returns = len(pairs) > p.exchange_pairs
                pair = pairs.popleft() if returns else (int(one), int(other))
                if not returns:
                    pairs.append(pair)
                scores[[*pair]] = scores[[*pair[::-1]]]
            out[step, head] = scores
    return out


def _flicker(p: SynthParameters, seed: int) -> Float:
    """Return fast offsets, float64[T + 1, G, NB]: each keeps its value until refreshed.

    The heads of a layer refresh together: one number per block and step falls below the rates of
    all those that do. A head's own statistics do not depend on what it shares with others.
    """
    layers, heads, blocks = p.recorded_layers, p.recorded_heads, p.final_blocks
    steps, classes = p.steps + 1, head_classes(p, seed)
    tone = ExactRandom(seed, "intensity").normal(steps)
    intensity = np.maximum(1.0 + p.burstiness * tone, 0.0)
    when = ExactRandom(seed, "refresh")
    shared, own = ExactRandom(seed, "flicker-layer"), ExactRandom(seed, "flicker-head")
    out = np.empty((steps, layers, heads, blocks))
    for s in range(steps):
        new = _in_common(p, shared.normal(layers, 1, blocks), own.normal(layers, heads, blocks))
        if s == 0:
            out[s] = new
            continue
        fresh = when.uniform(layers, 1, blocks) < classes.refresh[..., None] * intensity[s]
        out[s] = np.where(fresh, new, out[s - 1])
    out *= p.flicker * classes.amplitude[..., None]
    return out.reshape(steps, layers * heads, blocks)


def _draft_noise(p: SynthParameters, seed: int) -> Float:
    """Return the draft's errors before the factors of rank and rejection, float64[T, G, NB]."""
    layers, heads, blocks = p.recorded_layers, p.recorded_heads, p.final_blocks
    noise = ExactRandom(seed, "draft-noise").normal(p.steps, layers, heads, blocks)
    hit = ExactRandom(seed, "draft-hit").uniform(p.steps, layers, heads, blocks)
    noise = np.where(hit < p.draft_noise_share, noise, 0.0)
    depth = p.draft_noise_by_depth
    by_layer = np.array([depth[layer * len(depth) // p.model_layers] for layer in p.layer_ids()])
    static = head_classes(p, seed).static
    factor = np.where(static, p.draft_static_factor, by_layer[:, None])
    noise *= p.draft_noise * factor[..., None]
    return noise.reshape(p.steps, layers * heads, blocks)
