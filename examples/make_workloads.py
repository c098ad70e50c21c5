"""Write the request files of the examples: synthetic, the same bytes each time.

    python examples/make_workloads.py

Arrivals are a Poisson process; lengths are log-normal around a median, cut at both ends. The
parameters are assumptions of the examples, not measurements: put your own requests in their place.
"""

from __future__ import annotations

import csv
import math
import random
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Lengths:
    """Describe token counts: the median, how wide they spread (of the logarithm), both ends."""

    median: int
    spread: float
    least: int
    most: int

    def draw(self, numbers: random.Random) -> int:
        """Return one length."""
        length = round(self.median * math.exp(numbers.gauss(0.0, self.spread)))
        return min(max(length, self.least), self.most)


@dataclass(frozen=True)
class Load:
    """Describe a request file."""

    requests: int
    rate_per_s: float
    prompt: Lengths
    output: Lengths
    seed: int


LOADS = {
    "reasoning-qwen3-8b": Load(
        requests=100,
        rate_per_s=1.8,
        prompt=Lengths(3_000, 0.8, 100, 16_000),
        output=Lengths(3_500, 0.4, 500, 9_000),
        seed=1,
    ),
    "agents-qwen3-235b": Load(
        requests=60,
        rate_per_s=0.5,
        prompt=Lengths(40_000, 0.5, 8_000, 120_000),
        output=Lengths(250, 0.6, 50, 1_000),
        seed=2,
    ),
}


def rows(load: Load) -> list[list[str]]:
    """Return the rows of a request file under their header."""
    numbers = random.Random(load.seed)
    found, now = [["arrival_s", "prompt_tokens", "output_tokens"]], 0.0
    for _ in range(load.requests):
        prompt, output = load.prompt.draw(numbers), load.output.draw(numbers)
        found.append([f"{now:.3f}", str(prompt), str(output)])
        now += numbers.expovariate(load.rate_per_s)
    return found


def main() -> None:
    """Write every file."""
    for name, load in LOADS.items():
        with (HERE / name / "workload.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows(load))


if __name__ == "__main__":
    main()
