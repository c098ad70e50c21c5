"""What one decode node did: sums over its steps, the first of them in full, bytes over time."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from oasis_sim.cluster.result import some_steps
from oasis_sim.cluster.rows import NodeRows
from oasis_sim.cluster.series import Changes, Series
from oasis_sim.cluster.sizes import NodeSizes
from oasis_sim.cluster.steps import LOG_REMOTE
from oasis_sim.engine import log as columns
from oasis_sim.engine.bounds import RooflineParts, roofline_parts
from oasis_sim.engine.log import BATCH_COLUMNS, StepRecorder
from oasis_sim.engine.result import StepLog
from oasis_sim.engine.state import OUT_END, OUT_START
from oasis_sim.engine.totals import StepTotals

MOST_STEPS = 20_000
STEPS_NOTED = 16
STEPS_TOGETHER = 8_192
"""Steps that wait to be folded."""

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class NodeSteps:
    """Hold the steps of one node: their totals, the first ones, and what the roofline asks."""

    totals: tuple[StepTotals, ...]
    first: tuple[StepLog, ...]
    roofline: RooflineParts
    network: Float64
    host: Changes


class NodeLog:
    """Fold the steps of one decode node; memory follows simulated time.

    About MOST_STEPS steps of all nodes together are kept in full, the first of each node.
    """

    def __init__(self, sizes: NodeSizes) -> None:
        self.host = Changes()
        self.first_tokens = 0
        self._cost, self._block, self._tables = sizes.cost, sizes.block_layer, sizes.tables
        self._written = sizes.kv_token if sizes.cost.scheme.offload else 0
        self._mirrored = sizes.cost.share.host_bytes_token(sizes.cost.scheme)
        self._most = -(-MOST_STEPS // sizes.cluster.decode)
        self._network = Series()
        self._used = self._pending = self._count = 0
        self._recorder, self._remote = StepRecorder(), list[Int64]()
        self._totals: list[StepTotals] = []
        self._roofline: list[RooflineParts] = []
        self._first: list[StepLog] = []

    def hold(self, now_ps: int, delta: int) -> None:
        """Hold more (or less) in host memory from now on."""
        if delta < 0:
            self.host.add(now_ps, self._pending)
            self._pending = 0
        self.host.add(now_ps, delta)

    def join(self, held_bytes: int) -> None:
        """Count what a request holds that joins the batch (negative: that leaves it)."""
        self._used += held_bytes

    def add(self, log: Int64, quality: Float64, rows: NodeRows, hbm_bytes: int) -> None:
        """Add steps of these rows that are over; `hbm_bytes` are reserved."""
        sparse, steps = rows.sparse, len(log)
        start, end = int(log[0, OUT_START]), int(log[-1, OUT_END])
        blocks = log[:, LOG_REMOTE].copy()
        written = sparse * self._written
        grown = np.cumsum(blocks * self._block + written)
        self._network.add(start, end, float(int(grown[-1]) - steps * written))
        batch = np.empty((steps, BATCH_COLUMNS), dtype=np.int64)
        batch[:] = (sparse, rows.dense, 0, 0, hbm_bytes, 0, self._mirrored * sparse)
        batch[0, columns.FIRST_TOKENS] = self.first_tokens
        batch[:, columns.HOST_BYTES] = self._used + grown
        self.first_tokens = 0
        self._used += int(grown[-1])
        self._grow(log[:, OUT_END], grown)
        self._recorder.add(log[:, :LOG_REMOTE].copy(), quality, batch)
        self._remote.append(blocks)
        if self._recorder.steps >= STEPS_TOGETHER:
            self._fold()

    def _grow(self, ends: Int64, grown: Int64) -> None:
        """Note what steps add to host memory (`grown` is their sum), every STEPS_NOTED of the node.

        What is left is noted when a request leaves.
        """
        first = -(self._count + 1) % STEPS_NOTED
        self._count += len(ends)
        before = -self._pending
        for place in range(first, len(ends), STEPS_NOTED):
            total = int(grown[place])
            self.host.add(int(ends[place]), total - before)
            before = total
        self._pending = int(grown[-1]) - before

    def finish(self, now_ps: int) -> NodeSteps:
        """Return all; first tokens without a step behind them come in a step of no length.

        A node that was given nothing to do has no totals.
        """
        if self.first_tokens:
            log = np.zeros((1, self._tables.log_columns), dtype=np.int64)
            log[:, [OUT_START, OUT_END]] = now_ps
            batch = np.zeros((1, BATCH_COLUMNS), dtype=np.int64)
            batch[:, columns.FIRST_TOKENS] = self.first_tokens
            self._recorder.add(log, np.zeros((1, 3)), batch)
            self._remote.append(np.zeros(1, dtype=np.int64))
        if self._recorder.steps:
            self._fold()
        roofline = RooflineParts(
            sum(part.read_bytes for part in self._roofline),
            sum(part.flops for part in self._roofline),
            sum(part.moved_bytes for part in self._roofline),
        )
        return NodeSteps(
            tuple(self._totals),
            tuple(self._first),
            roofline,
            self._network.values(),
            self.host,
        )

    def _fold(self) -> None:
        block_bytes = self._cost.share.block_bytes(self._cost.scheme)
        steps = self._recorder.finish(block_bytes, self._tables.copies)
        steps = dataclasses.replace(steps, network_bytes=np.concatenate(self._remote) * self._block)
        dense = self._recorder.dense_context()
        self._roofline.append(roofline_parts(self._cost, steps, dense))
        self._totals.append(steps.folded())
        kept = sum(len(part) for part in self._first)
        if kept < self._most:
            self._first.append(some_steps(steps, slice(self._most - kept)))
        self._recorder, self._remote = StepRecorder(), []
