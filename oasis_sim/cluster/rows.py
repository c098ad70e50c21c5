"""The rows of a decode node as arrays: what the compiled steps advance, and how to go back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

import numpy as np
import numpy.typing as npt

from oasis_sim.cluster.steps import RemoteRows
from oasis_sim.cluster.visit import Visit
from oasis_sim.engine.stretch import Rows

CONTEXT, WALK, WALK_FIRST, WALK_LENGTH, PLACE, LEFT, AGE = range(7)
"""What the arrays hold of a row, as `Rows` and `RemoteRows` have it, and the tokens left to it."""
FIRST_PLACES = 1024

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


class Tables:
    """Stack the tables of `growth.Need`, each once, for all rows that look into them."""

    def __init__(self, groups: int) -> None:
        """Start without a table of so many groups of layers."""
        self.share: Float64 = np.zeros((0, groups))
        self._length = 0
        self._begin: dict[int, int] = {}
        self._kept: list[Float64] = []

    def begin(self, table: Float64) -> int:
        """Return where a table begins in `share`."""
        found = self._begin.get(id(table))
        if found is not None:
            return found
        begin, end = self._length, self._length + len(table)
        if end > len(self.share):
            more = max(FIRST_PLACES, 2 * end) - len(self.share)
            self.share = np.concatenate([self.share, np.zeros((more, self.share.shape[1]))])
        self.share[begin:end] = table
        self._length = end
        self._kept.append(table)  # what is alive keeps its id
        self._begin[id(table)] = begin
        return begin


class NodeRows:
    """Hold the requests that a node decodes, sparse rows first.

    A visit's own numbers are renewed when it leaves; until then the arrays hold the truth.
    """

    def __init__(self, tables: Tables) -> None:
        """Start without rows."""
        self.visits: list[Visit] = []
        self.sparse = 0
        self._tables = tables
        self._fetches = np.zeros(1, dtype=np.int64)
        self._whole = np.zeros((AGE + 1, 0), dtype=np.int64)
        self._rest = np.zeros((0, tables.share.shape[1]))
        self._phase = np.zeros(0)
        self._view()

    @property
    def dense(self) -> int:
        """Return the number of dense rows."""
        return len(self.visits) - self.sparse

    @property
    def left(self) -> Int64:
        """Return the tokens left to each row, int64[rows]."""
        left: Int64 = self._whole[LEFT]
        return left

    def count(self, steps: int) -> None:
        """Take a token per row for each of some steps."""
        self._whole[LEFT] -= steps
        self._whole[AGE] += steps

    def add(self, arrived: Sequence[Visit]) -> None:
        """Take these visits too: sparse ones behind the sparse, dense ones behind the dense."""
        first = [visit for visit in arrived if visit.sparse]
        rest = [visit for visit in arrived if not visit.sparse]
        at, whole = self.sparse, self._whole
        parts = [whole[:, :at], self._columns(first), whole[:, at:], self._columns(rest)]
        self._whole = np.concatenate(parts, axis=1)
        if first:
            needs = [visit.need for visit in first]
            nothing = np.zeros(self._rest.shape[1])
            new = [nothing if need is None else need.rest for need in needs]
            self._rest = np.concatenate([self._rest, np.array(new)])
            phase = [0.0 if need is None else need.phase for need in needs]
            self._phase = np.concatenate([self._phase, np.array(phase)])
        self.visits = [*self.visits[:at], *first, *self.visits[at:], *rest]
        self.sparse += len(first)
        self._view()

    def remove(self, gone: npt.NDArray[np.bool_]) -> list[Visit]:
        """Take rows out, bool[rows]; return their visits with their numbers renewed."""
        at, keep = self.sparse, ~gone
        left = list(compress(self.visits, gone.tolist()))
        for visit, column in zip(left, self._whole.compress(gone, axis=1).T.tolist(), strict=True):
            visit.job.context, visit.job.walk = column[CONTEXT], column[WALK]
            visit.job.generated, visit.age = visit.job.output - column[LEFT], column[AGE]
        self.visits = list(compress(self.visits, keep.tolist()))
        self._whole = self._whole.compress(keep, axis=1)
        self._rest = self._rest.compress(keep[:at], axis=0)
        self._phase = self._phase.compress(keep[:at])
        self.sparse = len(self._phase)
        self._view()
        return left

    def save(self) -> tuple[Int64, Int64]:
        """Copy what steps change."""
        return self._whole.copy(), self._fetches.copy()

    def restore(self, saved: tuple[Int64, Int64]) -> None:
        """Go back to what `save` copied."""
        self._whole[:], self._fetches[:] = saved

    def _columns(self, visits: Sequence[Visit]) -> Int64:
        """Return the numbers of some visits, int64[AGE + 1, visits]."""
        found = np.empty((AGE + 1, len(visits)), dtype=np.int64)
        for number, visit in enumerate(visits):
            job, need = visit.job, visit.need
            place = 0 if need is None else self._tables.begin(need.table) + visit.age
            found[:, number] = (
                *(job.context, job.walk, job.walk_first, job.walk_length),
                *(place, job.remaining, visit.age),
            )
        return found

    def _view(self) -> None:
        """Show the arrays as the compiled steps take them; without a need `rest` is 0."""
        first, rest = self._whole[:, : self.sparse], self._whole[:, self.sparse :]
        self.rows = Rows(
            context=first[CONTEXT],
            walk=first[WALK],
            walk_first=first[WALK_FIRST],
            walk_length=first[WALK_LENGTH],
            dense_context=rest[CONTEXT],
        )
        self.remote = RemoteRows(
            first[PLACE], self._rest, self._phase, self._tables.share, self._fetches
        )
