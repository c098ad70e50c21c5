"""What a disaggregated run writes down beside its steps: hand-overs, bytes sent and held."""

from __future__ import annotations

import dataclasses

import numpy as np

from oasis_sim.cluster.result import HandOvers
from oasis_sim.cluster.series import Changes, Series

NEVER = (
    "prefill_node",
    "decode_node",
    "prefill_start_ps",
    "prefill_end_ps",
    "sent_ps",
    "ready_ps",
)


class Record:
    """Collect a run; memory follows requests and simulated seconds."""

    def __init__(self, requests: int, prefill: int) -> None:
        self.network = Series()
        self.staging = [Changes() for _ in range(prefill)]
        self.resident = Changes()
        self.hand_over_bytes = 0
        self.prefill_busy_ps = 0
        self.vain_bytes = 0
        self.requests = HandOvers(
            **{
                field.name: np.full(requests, -1 if field.name in NEVER else 0, dtype=np.int64)
                for field in dataclasses.fields(HandOvers)
            }
        )
