"""How many CTAs share a row of attention or scan, and how deep their rings are."""

from __future__ import annotations

import math

from gpu_exec.kernels.memory import MAX_SPLITS

SCAN_SLOTS = 396
_ATTENTION_RINGS = ((3, 264), (2, 396))
_SPLIT_COST_TILES = 32
_LONG_ROW_TILES = 512
_HBM_TILES_PER_US, _SM_TILES_PER_US, _SMS = 531.0, 6.2, 132
_COMBINE_US, _FEW_PAIRS_SPLITS = 10.0, 4
"""Of short rows (validation/kernels-attention-h200.json): what HBM gives all SMs together and what
one SM takes at most, in tiles of 8 KB; what combining the parts of a row costs."""


def choose_splits(pairs: int, tiles: int, slots: int) -> int:
    """Return how many CTAs share one pair when ``slots`` CTAs run at a time."""
    limit = max(1, min(MAX_SPLITS, tiles // 8))
    return min(range(1, limit + 1), key=lambda splits: _cost(pairs, tiles, splits, slots))


def choose_attention(pairs: int, tiles: int) -> tuple[int, int]:
    """Return (splits, ring stages) of the attention: two CTAs per SM or three, fewest waves.

    Short rows are split where so few pairs leave HBM idle that it pays to combine their parts.
    """
    if tiles <= _LONG_ROW_TILES:
        alone, together = tiles / _SM_TILES_PER_US, pairs * tiles / _HBM_TILES_PER_US
        if alone > together + _COMBINE_US:
            return min(_FEW_PAIRS_SPLITS, max(1, tiles // 8)), _ATTENTION_RINGS[0][0]
        return 1, min(_ATTENTION_RINGS, key=lambda ring: _unsplit(pairs, tiles, *ring))[0]
    options = [
        (_cost(pairs, tiles, splits, slots), splits, stages)
        for stages, slots in _ATTENTION_RINGS
        for splits in (choose_splits(pairs, tiles, slots),)
    ]
    _, splits, stages = min(options)
    return splits, stages


def _unsplit(pairs: int, tiles: int, stages: int, slots: int) -> tuple[float, bool, int]:
    """Return the time of short rows in us, and what decides where that is the same.

    Full waves share HBM; the last one does, too, unless its few SMs cannot use all of it. One wave
    is better than two, and with several of them the deeper ring.
    """
    waves, rest = divmod(pairs, slots)
    time = waves * slots * tiles / _HBM_TILES_PER_US
    if rest:
        on_one_sm = math.ceil(rest / _SMS) * tiles
        time += max(rest * tiles / _HBM_TILES_PER_US, on_one_sm / _SM_TILES_PER_US)
    several = pairs > slots
    return round(time, 3), several, -stages if several else stages


def _cost(pairs: int, tiles: int, splits: int, slots: int) -> float:
    """Estimate the time: all slots share the bandwidth, so a wave costs its slots times tiles.

    Every CTA pays about ``_SPLIT_COST_TILES`` tile times to fill its ring and to combine.
    """
    waves = math.ceil(pairs * splits / slots)
    return waves * slots * (tiles / splits + _SPLIT_COST_TILES)
