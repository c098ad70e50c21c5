"""A workload of 100,000 requests in bounded memory, measured in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "all_schemes.py"
REQUESTS = 100_000
BYTES_PER_REQUEST = 1024


def test_memory_grows_by_the_tables_of_requests_and_steps_only() -> None:
    """Arrays of times per request and step, a few hundred bytes; requests in flight are few.

    Compiling may peak above them, then nothing grows.
    """
    command = [sys.executable, str(SCRIPT), "--requests", str(REQUESTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    found = re.search(r"\((\d+) bytes per request\)", done.stdout)
    assert found is not None
    assert int(found.group(1)) < BYTES_PER_REQUEST
