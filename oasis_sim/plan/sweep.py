"""Simulate the points of a grid: each once, kept under its content, taken up again after a stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from oasis_sim.engine.spec import ScenarioSpec
from oasis_sim.errors import InputError, RunFailed
from oasis_sim.fileio import printable
from oasis_sim.plan.inputs import Inputs
from oasis_sim.plan.outcome import Outcome, make_simulator
from oasis_sim.plan.store import Store, key_of
from oasis_sim.plan.table import Row
from oasis_sim.report.config import write_config

Progress = Callable[[int, int], None]
Simulator = Callable[[ScenarioSpec], Outcome]
Runner = Callable[
    [Callable[[], Simulator], Sequence[ScenarioSpec]], Generator[tuple[int, Outcome], None, None]
]


@dataclass(frozen=True)
class Shard:
    """Say which points are ours: every `count`-th, beginning with number `index` (from 1)."""

    index: int = 1
    count: int = 1

    def has(self, position: int) -> bool:
        """Tell whether the point at a position of the canonical order is ours."""
        return position % self.count == self.index - 1


@dataclass(frozen=True)
class Point:
    """Hold one point of the grid: what was varied, and the scenario that follows."""

    labels: Mapping[str, str | None]
    spec: ScenarioSpec


@dataclass(frozen=True)
class Cell:
    """Hold a point with the full text of its scenario and the key of that text."""

    point: Point
    config: str
    key: str


def cells_of(points: Sequence[Point], inputs: Inputs) -> list[Cell]:
    """Load what the points name and address each; points that are the same come once."""
    found: dict[tuple[tuple[str, str | None], ...], Cell] = {}
    for point in points:
        spec = point.spec
        config = write_config(spec, inputs.scenario(spec), inputs.network(spec))
        cell = Cell(point, config, key_of(config))
        found.setdefault(tuple(point.labels.items()), cell)
    return list(found.values())


def missing(cells: Sequence[Cell], store: Store, shard: Shard) -> list[Cell]:
    """Return our cells that are not there yet, equal scenarios once."""
    ours = [cell for position, cell in enumerate(cells) if shard.has(position)]
    unique = {cell.key: cell for cell in ours}
    return [cell for cell in unique.values() if store.load(cell.key) is None]


def simulate_cells(
    cells: Sequence[Cell], store: Store, run: Runner, progress: Progress | None
) -> None:
    """Simulate cells and keep each as it ends; `run` does the jobs, here or on a cluster.

    Raise RunFailed when a result cannot be kept (full disk); what was kept before stays.
    """
    specs = [cell.point.spec for cell in cells]
    started = time.time()
    with closing(run(make_simulator, specs)) as results:
        for done, (index, outcome) in enumerate(results, start=1):
            cell = cells[index]
            log = f"ended_after_s: {time.time() - started:.3f}\n"
            try:
                store.save(cell.key, cell.config, outcome, log)
            except (OSError, InputError) as error:
                reason = error.strerror if isinstance(error, OSError) else error.problem
                raise RunFailed(
                    f"{printable(store.path)}: a result was not kept: {reason}; {done - 1} of "
                    f"{len(cells)} were; make room and run the same command to go on"
                ) from None
            if progress is not None:
                progress(done, len(cells))


def rows_of(cells: Sequence[Cell], store: Store) -> list[Row]:
    """Return the rows of the table in canonical order, with what is there."""
    return [Row(cell.point.labels, cell.key, store.load(cell.key)) for cell in cells]
