"""Standard error: notes, and a progress bar where a person is watching."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from oasis_sim.report.numbers import counted
from oasis_sim.text import one_line

if TYPE_CHECKING:
    from oasis_sim.engine.scenario import Scenario

SECONDS_BETWEEN_UPDATES = 0.1
SECONDS_BETWEEN_LINES = 10.0

Progress = Callable[[int, int], None]


def note(text: str, quiet: bool = False) -> None:
    """Print one line on standard error, unless quiet."""
    if not quiet:
        click.echo(one_line(text), err=True)


class Warnings:
    """Tell what is known of scenarios before they are simulated, each line once."""

    def __init__(self, quiet: bool, in_table: bool = False) -> None:
        """Say nothing when `quiet`; `in_table`: the result repeats what the readers warned of."""
        self._quiet = quiet
        self._in_table = in_table
        self._told: set[str] = set()

    def show(self, scenario: Scenario) -> None:
        """Tell what the readers dropped or assumed, what requests were read, who prices them."""
        engine, own = scenario.engine_name, scenario.scheme.name
        if own in scenario.profile.engines and engine not in (own, "roofline"):
            self.tell(
                f"scheme {own} is priced by engine {engine}; profile {scenario.profile.name} also "
                f"has an engine of its own for it (--engine {own})"
            )
        workload = scenario.workload
        if workload.format not in ("closed_loop", "poisson"):
            self.tell(workload.summary)
        for trace in scenario.traces:
            for text in trace.warnings:
                self.tell(f"{trace.name}: {text}")
        for text in () if self._in_table else workload.warnings:
            self.tell(text)

    def tell(self, text: str) -> None:
        """Print a line that was not printed before."""
        if text not in self._told:
            self._told.add(text)
            note(text, self._quiet)


@contextmanager
def simulation_bar(title: str, quiet: bool = False) -> Iterator[Progress | None]:
    """Give a callback as `progress_bar` does, and say so when the core has to be compiled first."""
    from oasis_sim.compiled import compilation_told

    text = "compiling the simulator's core, once per installation (10 to 15 s)"
    with compilation_told(lambda: note(text, quiet)), progress_bar(title, quiet) as progress:
        yield progress


@contextmanager
def progress_bar(title: str, quiet: bool = False) -> Iterator[Progress | None]:
    """Give a callback `(done, total)` that draws a bar, or None where nobody watches."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(title, total=None)
        last = 0.0

        def advance(done: int, total: int) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= SECONDS_BETWEEN_UPDATES or done >= total:
                last = now
                bar.update(task, completed=done, total=total, refresh=True)

        yield advance


@contextmanager
def simulations_told(title: str, quiet: bool = False) -> Iterator[Callable[[int], None] | None]:
    """Give a callback that shows how many simulations are done, or None where nobody watches."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status(title) as status:
        yield lambda done: status.update(f"{title}: {counted(done, 'simulation')}")


@contextmanager
def points_done(title: str, quiet: bool = False) -> Iterator[Progress | None]:
    """Give a callback `(done, total)`: a bar for a person, a line now and then in a log."""
    if quiet:
        yield None
        return
    started = last = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES and done < total:
            last = now
            left = (now - started) / done * (total - done)
            note(f"{title}: {done:,} of {total:,}, about {left:,.0f} s left")

    with progress_bar(title) as bar:
        yield bar or tell
