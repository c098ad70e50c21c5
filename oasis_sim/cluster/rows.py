"""The rows of a decode node as arrays: what the compiled steps advance, and how to go back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from oasis_sim.cluster.steps import RemoteRows
from oasis_sim.cluster.visit import Visit
from oasis_sim.engine.stretch import Rows

Int64 = npt.NDArray[np.int64]


class NodeRows:
    """Hold the requests that a node decodes, sparse rows first, and the tokens left to each.

    The visits' own numbers are renewed by `settle` only; until then the arrays hold the truth.
    """

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self.visits: list[Visit] = []
        self._sparse = 0
        self._fetches = np.zeros(1, dtype=np.int64)
        self.rebuild([], frozenset())

    @property
    def sparse(self) -> int:
        """Return the number of sparse rows."""
        return self._sparse

    @property
    def dense(self) -> int:
        """Return the number of dense rows."""
        return len(self.visits) - self._sparse

    def rebuild(self, visits: Sequence[Visit], sparse: frozenset[int]) -> None:
        """Take these visits; `sparse` are the requests among them that decode sparsely."""
        first = [visit for visit in visits if visit.job.index in sparse]
        rest = [visit for visit in visits if visit.job.index not in sparse]
        self.visits, self._sparse = [*first, *rest], len(first)
        jobs = [visit.job for visit in first]
        self.rows = Rows(
            context=_whole(job.context for job in jobs),
            walk=_whole(job.walk for job in jobs),
            walk_first=_whole(job.walk_first for job in jobs),
            walk_length=_whole(job.walk_length for job in jobs),
            dense_context=_whole(visit.job.context for visit in rest),
        )
        self.left = _whole(visit.job.remaining for visit in self.visits)
        self.remote = self._remote(first)

    def settle(self, steps: Int64) -> None:
        """Write the arrays back into the visits; `steps` int64[rows] have run since the rebuild."""
        context = np.concatenate([self.rows.context, self.rows.dense_context])
        for place, visit in enumerate(self.visits):
            visit.job.context = int(context[place])
            visit.job.generated += int(steps[place])
            visit.age += int(steps[place])
            if place < self._sparse:
                visit.job.walk = int(self.rows.walk[place])

    def save(self) -> list[Int64]:
        """Copy what steps change."""
        return [array.copy() for array in self._changing()]

    def restore(self, saved: list[Int64]) -> None:
        """Go back to what `save` copied."""
        for array, old in zip(self._changing(), saved, strict=True):
            array[:] = old

    def _changing(self) -> tuple[Int64, ...]:
        rows = self.rows
        return rows.context, rows.walk, rows.dense_context, self.remote.place, self.remote.fetches

    def _remote(self, visits: Sequence[Visit]) -> RemoteRows:
        """Return what the sparse rows miss; each table stands once in the stack."""
        rest = np.zeros((len(visits), self._groups))
        phase = np.zeros(len(visits))
        place = np.zeros(len(visits), dtype=np.int64)
        tables: dict[int, int] = {}
        stack: list[npt.NDArray[np.float64]] = []
        length = 0
        for row, visit in enumerate(visits):
            if visit.need is None:
                continue
            table = visit.need.table
            if id(table) not in tables:
                tables[id(table)] = length
                stack.append(table)
                length += len(table)
            rest[row], phase[row] = visit.need.rest, visit.need.phase
            place[row] = tables[id(table)] + visit.age
        if len(stack) == 1:
            share = stack[0]
        else:
            share = np.concatenate(stack) if stack else np.zeros((0, self._groups))
        # Rows without a need never look into the stack: their blocks left are none.
        return RemoteRows(place, rest, phase, share, self._fetches)


def _whole(values: object) -> Int64:
    return np.fromiter(values, dtype=np.int64)  # type: ignore[call-overload,no-any-return]
