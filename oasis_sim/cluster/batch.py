"""The batch of a decode node: its rows, their prices, and steps in compiled code."""

from __future__ import annotations

from collections.abc import Container

import numpy as np
import numpy.typing as npt

from oasis_sim.cluster.rows import NodeRows, Tables
from oasis_sim.cluster.sizes import NodeSizes
from oasis_sim.cluster.steps import FetchCosts, StepOut, run_remote_stretch
from oasis_sim.cluster.visit import Stage, Visit
from oasis_sim.engine.pricing import price
from oasis_sim.engine.serving import NEVER_PS
from oasis_sim.engine.state import NOW, OUT_END, new_marks, new_state
from oasis_sim.engine.stretch import StretchCosts
from oasis_sim.engine.walks import Walks
from oasis_sim.errors import RunFailed

LONGEST_PRICE = 256
"""Prices hold for so many steps of the same rows, as in `serving`."""

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Saved = tuple[tuple[Int64, Int64], list[Int64]]


class Batch:
    """Decode requests together; while they are in it, its arrays hold the truth about them."""

    def __init__(self, sizes: NodeSizes, walks: Walks, tables: Tables) -> None:
        self.rows = NodeRows(tables)
        self._sizes, self._walks = sizes, walks
        self._state = new_state(sizes.cost.share.model.layers, walks.tables.ranks)
        self._prices: StretchCosts | None = None
        self._priced = 0

    @property
    def visits(self) -> list[Visit]:
        """Return the requests in the batch."""
        return self.rows.visits

    def longest(self) -> int:
        """Return how many steps leave rows and prices as they are."""
        if self._prices is None or self._priced == LONGEST_PRICE:
            self._prices, self._priced = price(self._sizes.cost, self.rows.rows, 0), 0
        return min(int(self.rows.left.min()), LONGEST_PRICE - self._priced)

    def start(self, now_ps: int) -> None:
        """Let the next step begin now."""
        self._state.scalars[NOW] = now_ps

    def save(self) -> Saved:
        """Copy what `execute` changes."""
        return self.rows.save(), [array.copy() for array in self._state]

    def restore(self, saved: Saved) -> None:
        """Go back to what `save` copied."""
        self.rows.restore(saved[0])
        for array, old in zip(self._state, saved[1], strict=True):
            array[:] = old

    def execute(
        self, count: int, fetch: FetchCosts, limit_ps: int = NEVER_PS
    ) -> tuple[Int64, Float64]:
        """Run up to `count` steps, none after the first that ends at or after the limit.

        `longest` prices them and says how many there may be. Returns their log and quality sums.
        """
        assert self._prices is not None
        tables = self._walks.tables
        log = np.empty((count, tables.log_columns + 1), dtype=np.int64)
        quality = np.empty((count, tables.quality.shape[1]))
        marks = new_marks(self._state)
        done = run_remote_stretch(
            self._state,
            self.rows.rows,
            tables,
            self._prices,
            self.rows.remote,
            fetch,
            StepOut(limit_ps, log, quality, marks),
        )
        if log[done - 1, OUT_END] >= NEVER_PS:
            raise RunFailed("the run takes more than 53 days of simulated time; make it smaller")
        return log[:done], quality[:done]

    def count(self, steps: int) -> None:
        """Take steps that were executed as done."""
        self._priced += steps
        self.rows.count(steps)

    def join(self, arrived: list[Visit], leaving: Container[int] = ()) -> list[Visit]:
        """Let requests join and those of some numbers leave; return the latter."""
        left = self._take_out(np.array([v.job.index in leaving for v in self.visits], dtype=bool))
        for visit in arrived:
            visit.stage = Stage.DECODING
        self.rows.add(arrived)
        self._prices = None
        return left

    def take_ended(self) -> list[Visit]:
        """Take out the requests that have all their tokens and return them."""
        return self._take_out(self.rows.left == 0)

    def _take_out(self, gone: npt.NDArray[np.bool_]) -> list[Visit]:
        if not gone.any():
            return []
        self._prices = None
        return self.rows.remove(gone)
