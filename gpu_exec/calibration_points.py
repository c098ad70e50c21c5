"""Where calibration measures: batches, contexts and unit sizes, none of them in the matrix."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_exec.probes import StepProbe

FOREGROUND_BATCHES = (4, 12, 24, 36, 44, 52, 60, 66, *range(72, 145, 8), 160, 176, 200)
"""Close to each other: the library's products and the waves of attention change in steps."""
REST_BATCHES = (12, 24)
DENSE_POINTS = ((2, 12_288), (6, 24_576), (12, 24_576), (24, 12_288), (72, 6_144))
SCAN_POINTS = ((12, 12_288), (24, 24_576), (56, 12_288), (88, 24_576), (144, 12_288))
SELECTION_POINTS = (
    (12, 6_144),
    (12, 24_576),
    (44, 6_144),
    (44, 24_576),
    (112, 6_144),
    (112, 24_576),
)
PAIR_BATCHES = (24, 56, 88, 120, 152)
BACKGROUND_BATCHES = (56, 112)
TRANSFER_BATCH = 24
UNIT_BLOCKS = (16, 32, 64)
# Blocks per row, head and layer of the two points of each line: fast ways move more.
TRANSFER_COUNTS = {"sm_gather": (2.0, 8.0), "naive": (0.5, 1.5), "copy_engine": (2.0, 6.0)}
HOST_BOUND_BLOCKS = (16,)
"""Units of so many tokens, in batches: the host submits them more slowly than they are copied."""
HOST_BOUND_COUNT = 2.5
"""Of these: about twice the time of the linear layers and attention beside them."""
DRAFT_BATCHES = PAIR_BATCHES
OVERLAP_SHARE = 0.7
COVER_BATCHES = (24, 44, 60, 72, 88, 104, 120, 136, 144, 160, 176)
"""Of `FOREGROUND_BATCHES`, whose stages are known without a transfer."""
COVER_SHARE = 1.6
"""A transfer that goes on beside all of a step, in units of it without."""
LOAD_BATCH = 56
LOAD_SHARE = 2.0
OUTLAST_SHARES = (1.5, 3.0)
"""Of the work's time: transfers that go on after it."""
NEIGHBOUR_ROWS = {"sm_gather": PAIR_BATCHES, "naive": (56, 120)}


def calibrated_cases(readings: Iterable[object]) -> set[tuple[int, int]]:
    """Return (batch, context) of every step probe, to keep validation apart from it."""
    return {(p.batch, p.context_tokens) for p in readings if isinstance(p, StepProbe)}
