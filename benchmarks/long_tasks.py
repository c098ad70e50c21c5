"""Who does what in ``quality_long.py``: files in a folder, taken and filled by many processes."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Tasks:
    """Hand out each (run, text, seed) once, in order of the seeds, and keep what comes of it."""

    def __init__(self, folder: Path) -> None:
        """Use a folder that all workers see."""
        self._folder = folder

    def next_seed(self, run: str, text: str) -> int:
        """Take the next seed of a text."""
        return next(seed for seed in count() if self._taken(f"{run}-{text}-{seed}"))

    def count(self, run: str, text: str) -> int:
        """Return how many seeds of a text are taken."""
        return len(list(self._folder.glob(f"{run}-{text}-*.taken")))

    def next_steered(self, text: str) -> int | None:
        """Take a seed that the CPU has done and nobody decoded steered; None: there is none."""
        for path in sorted(self._folder.glob(f"cpu-{text}-*.result.npz")):
            seed = path.name.removesuffix(".result.npz").split("-")[-1]
            if self._taken(f"steered-{text}-{seed}"):
                return int(seed)
        return None

    def keep(self, run: str, text: str, seed: int, found: dict[str, Any]) -> None:
        """Write what a decode left."""
        self._write(f"{run}-{text}-{seed}.result.npz", found)

    def keep_choices(self, text: str, seed: int, targets: NDArray[np.int16]) -> None:
        """Write what the CPU chose, int16 [T, L, R, H, K]."""
        self._write(f"choices-{text}-{seed}.npz", {"targets": targets})

    def choices(self, text: str, seed: int) -> tuple[dict[str, Any], NDArray[np.int16]]:
        """Return the CPU's result and its choices."""
        with np.load(self._folder / f"cpu-{text}-{seed}.result.npz") as found:
            result = {key: found[key] for key in found.files}
        with np.load(self._folder / f"choices-{text}-{seed}.npz") as found:
            return result, found["targets"]

    def _write(self, name: str, arrays: dict[str, Any]) -> None:
        place = self._folder / f"{name}.{os.getpid()}.part.npz"
        np.savez(place, **arrays)
        place.replace(self._folder / name)

    def _taken(self, name: str) -> bool:
        """Tell whether this process is the first to take something."""
        try:
            os.close(os.open(self._folder / f"{name}.taken", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True
