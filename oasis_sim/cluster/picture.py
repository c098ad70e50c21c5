"""The first hand-overs of a disaggregated run as slices of a timeline."""

from __future__ import annotations

import numpy as np

from oasis_sim.cluster.result import HandOvers
from oasis_sim.engine.result import Slice

MOST_SHOWN = 16


def slices(moves: HandOvers) -> tuple[Slice, ...]:
    """Draw prefill on the first prefill node, and what the first decode node receives.

    The first MOST_SHOWN requests of each. A hand-over that begins before another has ended
    is left out, because slices of one track do not overlap.
    """
    found: list[Slice] = []
    kinds = (
        ("prefill node 0", "prefill", moves.prefill_node, moves.prefill_start_ps),
        ("network to decode node 0", "hand-over", moves.decode_node, moves.sent_ps),
    )
    ends = (moves.prefill_end_ps, moves.ready_ps)
    for (track, name, node, start), end in zip(kinds, ends, strict=True):
        mine = np.flatnonzero((node == 0) & (start >= 0) & (end > start))
        last = 0
        for request in mine[np.argsort(start[mine], kind="stable")][:MOST_SHOWN].tolist():
            first, until = int(start[request]), int(end[request])
            if first < last:
                continue
            last = until
            args: dict[str, int | str] = {
                "request": request,
                "bytes": int(moves.union_bytes[request] + moves.gpu_bytes[request]),
            }
            found.append(Slice(track, f"{name} of request {request}", first, until, args))
    return tuple(found)
