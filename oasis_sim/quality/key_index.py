"""What a scheme keeps of each key to choose blocks by: its index of keys. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

EXTREMES = "extremes"
EXTREMES_FP8 = "extremes-fp8"
MEANS = "means"
DIRECTIONS = "directions"


@dataclass(frozen=True)
class KeyIndex:
    """Say what is kept of the keys.

    kind: ``extremes``, the smallest and largest key of each block, coordinate by coordinate
        (Quest); ``extremes-fp8``, the same in e4m3, rounded outwards as ``gpu_exec`` keeps them;
        ``means``, the mean key of each block (ShadowKV's landmarks); ``directions``, each token's
        key along ``share`` of the directions in which the prompt's keys are longest (InfiniGen's
        partial keys).
    rank: keys of chosen blocks are those of factors of this rank over all KV heads, made of the
        prompt's keys before their rotation (0: the keys themselves). ``outlier_blocks`` blocks per
        head that their mean describes worst, the newest of the prompt and all that is generated
        are then always attended, with their own keys (ShadowKV).
    """

    kind: str = EXTREMES
    share: float = 0.0
    rank: int = 0
    outlier_blocks: int = 0


EXACT_EXTREMES = KeyIndex()
