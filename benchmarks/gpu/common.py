"""Time captured launches and write measured figures with what they were measured on."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

WARM_UP_S = 0.1


def graph_ms(launches: Callable[[], None], repeats: int = 10, inner: int = 1) -> float:
    """Return the median time of one call of ``launches``, captured and replayed.

    The clocks of a card that rested come back over tens of milliseconds: replay that long first.
    """
    launches()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(inner):
            launches()
    until = time.perf_counter() + WARM_UP_S
    while time.perf_counter() < until:
        graph.replay()
        torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    torch.cuda.synchronize()
    times = sorted(a.elapsed_time(b) for a, b in pairwise(events))
    return times[len(times) // 2] / inner


def machine() -> dict[str, Any]:
    """Return card, driver, date, command and commit of this measurement."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    name, driver = (
        subprocess.run(query, capture_output=True, text=True, check=True)
        .stdout.splitlines()[0]
        .split(", ")
    )
    commit = (
        os.environ.get("OASIS_COMMIT")
        or subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()
    )
    return {
        "gpu": name,
        "driver": driver,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "command": " ".join(["python", sys.argv[0], *(Path(a).name for a in sys.argv[1:])]),
        "commit": commit,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def write_rows(path: str, rows: list[dict[str, Any]], extra: dict[str, Any] | None = None) -> None:
    """Write measured rows as JSON."""
    body = {**machine(), **(extra or {}), "rows": rows}
    Path(path).write_text(json.dumps(body, indent=1) + "\n")
