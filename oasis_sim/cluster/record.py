"""What a disaggregated run writes down: steps, hand-overs, and what is held and sent over time."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from oasis_sim.cluster.result import HandOvers, Held, Timeline
from oasis_sim.cluster.series import Level, Series
from oasis_sim.cluster.steps import LOG_REMOTE
from oasis_sim.engine import log as columns
from oasis_sim.engine.log import BATCH_COLUMNS, StepRecorder
from oasis_sim.engine.result import StepLog
from oasis_sim.engine.state import OUT_END, OUT_START

Int64 = npt.NDArray[np.int64]

NEVER = (
    "prefill_node",
    "decode_node",
    "prefill_start_ps",
    "prefill_end_ps",
    "sent_ps",
    "ready_ps",
)


class Record:
    """Collect a run; memory follows steps, requests and simulated seconds."""

    def __init__(self, requests: int, prefill: int, decode: int, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self.network = Series()
        self.decode_host = [Level() for _ in range(decode)]
        self.staging = [Level() for _ in range(prefill)]
        self.all_decode_host, self.all_staging, self.resident = Level(), Level(), Level()
        self.hand_over_bytes = 0
        self.prefill_busy_ps = 0
        self.vain_bytes = 0
        self.requests = HandOvers(
            **{
                field.name: np.full(requests, -1 if field.name in NEVER else 0, dtype=np.int64)
                for field in dataclasses.fields(HandOvers)
            }
        )
        self._steps = StepRecorder()
        self._node: list[npt.NDArray[np.int32]] = []
        self._remote: list[Int64] = []

    @property
    def fetched_blocks(self) -> int:
        """Return the blocks of one layer that decode nodes have fetched."""
        return sum(int(remote.sum()) for remote in self._remote)

    def steps(
        self,
        node: int,
        log: Int64,
        quality: npt.NDArray[np.float64],
        batch: Int64,
        token_bytes: int,
    ) -> None:
        """Add steps of a decode node that are over, and what they fetched and wrote to the host.

        `batch` int64[n, BATCH_COLUMNS]; `token_bytes` are the host bytes that one sparse row
        writes per step.
        """
        blocks = log[:, LOG_REMOTE].copy()
        start, end = int(log[0, OUT_START]), int(log[-1, OUT_END])
        fetched = int(blocks.sum()) * self.block_bytes
        self.network.add(start, end, float(fetched))
        level = self.decode_host[node]
        written = batch[:, columns.SPARSE] * token_bytes
        batch[:, columns.HOST_BYTES] = level.now + np.cumsum(blocks * self.block_bytes + written)
        self.host(node, end, fetched + int(written.sum()))
        self._steps.add(log[:, :LOG_REMOTE].copy(), quality, batch)
        self._node.append(np.full(len(log), node, dtype=np.int32))
        self._remote.append(blocks)

    def host(self, node: int, now_ps: int, delta: int) -> None:
        """Hold more (or less) in the host memory of a decode node."""
        self.decode_host[node].change(now_ps, delta)
        self.all_decode_host.change(now_ps, delta)

    def stage(self, node: int, now_ps: int, delta: int) -> None:
        """Hold more (or less) KV for others on a prefill node."""
        self.staging[node].change(now_ps, delta)
        self.all_staging.change(now_ps, delta)

    def late_tokens(self, node: int, now_ps: int, tokens: int) -> None:
        """Add first tokens of requests that needed no decode step, as a step of no length."""
        log = np.zeros((1, LOG_REMOTE), dtype=np.int64)
        log[:, [OUT_START, OUT_END]] = now_ps
        batch = np.zeros((1, BATCH_COLUMNS), dtype=np.int64)
        batch[:, columns.FIRST_TOKENS] = tokens
        self._steps.add(log, np.zeros((1, 3)), batch)
        self._node.append(np.full(1, node, dtype=np.int32))
        self._remote.append(np.zeros(1, dtype=np.int64))

    def step_log(self, block_bytes: int) -> tuple[StepLog, npt.NDArray[np.int32], Int64]:
        """Return the steps of all nodes in the order of their ends, whose they are, dense contexts.

        `block_bytes` is the size of one admitted block of one KV head.
        """
        log = self._steps.finish(block_bytes)
        node = np.concatenate(self._node)
        dense = self._steps.dense_context()
        network = np.concatenate(self._remote) * self.block_bytes
        order = np.lexsort((node, log.end_ps))
        fields = {
            field.name: getattr(log, field.name)[order] for field in dataclasses.fields(StepLog)
        }
        fields["network_bytes"] = network[order]
        return StepLog(**fields), node[order], dense[order]

    def timeline(self) -> Timeline:
        """Return what was held and sent in each bin."""
        parts = [
            self.network.values(),
            *(level.held.values() for level in self._totals()),
        ]
        length = max(len(part) for part in parts)
        network, *held = (np.pad(part, (0, length - len(part))) for part in parts)
        host, staging, resident = (part / self.network.bin_ps for part in held)
        return Timeline(self.network.bin_ps, network, host, staging, resident)

    def _totals(self) -> tuple[Level, Level, Level]:
        return self.all_decode_host, self.all_staging, self.resident

    def held(self, end_ps: int) -> tuple[Held, Held]:
        """Return what decode hosts and prefill hosts held until `end_ps`."""
        return (
            _held(self.all_decode_host, self.decode_host, end_ps),
            _held(self.all_staging, self.staging, end_ps),
        )


def _held(total: Level, each: list[Level], end_ps: int) -> Held:
    node_peak = max(level.peak for level in each)
    return Held(total.mean(0, end_ps), total.peak, node_peak, total.now)
