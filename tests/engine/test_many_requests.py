"""Memory of long workloads: 100,000 requests in a process of its own, and what each leaves."""

from __future__ import annotations

import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from oasis_sim.engine import simulate
from oasis_sim.engine.batch import Job
from oasis_sim.engine.requests import RequestBook
from oasis_sim.workload import closed_loop
from tests.engine.scenarios import scenario

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "all_schemes.py"
REQUESTS = 100_000
PEAK_BYTES_PER_REQUEST = 1024
LEFT_BYTES_PER_REQUEST = 750
"""Rows of logs (650 measured); kept jobs of ended requests alone would make it 820."""


def test_memory_grows_by_the_tables_of_requests_and_steps_only() -> None:
    """Arrays of times per request and step, a few hundred bytes; requests in flight are few.

    Compiling may peak above them, then nothing grows.
    """
    command = [sys.executable, str(SCRIPT), "--requests", str(REQUESTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    found = re.search(r"\((\d+) bytes per request\)", done.stdout)
    assert found is not None
    assert int(found.group(1)) < PEAK_BYTES_PER_REQUEST


def held_bytes(requests: int) -> int:
    """Return the memory in use when the last step of so many requests has run."""
    held = 0

    def note(done: int, expected: int) -> None:
        nonlocal held
        held = tracemalloc.get_traced_memory()[0]

    case = scenario("oasis", workload=closed_loop(requests, 32, 2), schedule_steps=0)
    tracemalloc.start()
    try:
        simulate(case, note)
    finally:
        tracemalloc.stop()
    return held


def left_by_a_request() -> float:
    """Return by how much memory in use grows with each request, compiling left out."""
    few, many = 400, 1600
    held_bytes(many)
    return (held_bytes(many) - held_bytes(few)) / (many - few)


def test_a_request_leaves_its_rows_only() -> None:
    """What is in use at the end grows by the rows of logs, whatever compiling takes."""
    assert 0 < left_by_a_request() < LEFT_BYTES_PER_REQUEST


def test_a_leak_of_requests_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept jobs of ended requests, the least that could be forgotten, are too much."""
    kept: list[Job] = []
    finished = RequestBook.finished

    def leak(book: RequestBook, job: Job, now_ps: int) -> None:
        kept.append(job)
        finished(book, job, now_ps)

    monkeypatch.setattr(RequestBook, "finished", leak)
    assert left_by_a_request() > LEFT_BYTES_PER_REQUEST
