"""A decode step without a GPU: real units in NumPy pools, times that follow from what is on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpu_exec.kernels.config import StepConfig, StepMoves, StepTimes
from gpu_exec.kernels.rank_sum import RankSum
from gpu_exec.stamps import stamp, wrong_units
from gpu_exec.step import Verification
from oasis_sim.errors import RunFailed

ELEMENTS = 16
CLOCKS_MS = 0.25
"""What the clocks around a stage take in all layers."""
STAGE_MS = {"linear": 4.0, "attention": 3.0, "scan": 1.0, "draft": 0.5}


class FakeStep:
    """Follow the interface of `gpu_exec.step.DecodeStep`; `spoil` drops that many moves a step.

    Its all-reduces are those of `RankSum`, of two rows on the CPU. `log` holds what happened on
    which device; `fails_at` makes a device fail before that step.
    """

    spoil = 0
    log: list[tuple[int, str]] = []  # noqa: RUF012 - tests look at it
    fails_at: dict[int, int] = {}  # noqa: RUF012 - tests set it
    opened: list[FakeStep] = []  # noqa: RUF012 - tests look at the steps that were made

    def __init__(self, config: StepConfig, sums: RankSum | None = None) -> None:
        """Make a pool of poison."""
        self.config = config
        self.joined, self.checking = sums, False
        self.rank = 0 if sums is None else sums.rank
        if sums is not None:
            import torch

            self.x = torch.zeros(config.rows, config.shape.hidden, dtype=torch.bfloat16)
        slots = config.shape.layers * config.pairs * config.slots_per_pair
        self.pool = np.zeros((slots, ELEMENTS), dtype=np.uint16)
        self.memory = SimpleNamespace(pool=self.pool, config=config)
        self.executed = 0
        self.closed = False
        self.loads = 0
        FakeStep.opened.append(self)

    def reconfigure(self, **changes: Any) -> None:
        """Change the configuration."""
        self.config = replace(self.config, **changes)

    def load(self, moves: StepMoves) -> None:
        """Check and keep the moves."""
        moves.check(self.config)
        self.moves, self.executed = moves, 0
        self.loads += 1

    def try_sums(self) -> int:
        """Do an all-reduce."""
        if self.joined is None:
            return 0
        self.joined.checked(self.x, 0)
        return self.joined.counts()[1]

    def check_sums(self, on: bool) -> None:
        """Sum patterns from now on, or not."""
        self.checking = on and self.joined is not None

    def sums(self) -> tuple[int, int]:
        """Return elements checked and wrong."""
        return (0, 0) if self.joined is None else self.joined.counts()

    def capture(self, stages: bool = False) -> None:
        """Note that a graph was captured."""
        FakeStep.log.append((self.rank, "capture"))

    def hidden_state(self) -> bytes:
        """Return the result of the last all-reduce."""
        raw: bytes = self.x.float().numpy().tobytes()
        return raw

    def run(self, steps: int, warmup: int = 3, stages: bool = False) -> StepTimes:
        """Move the units of the next steps."""
        for _ in range(warmup):
            self._one()
        units = sum(self._one() for _ in range(steps))
        on = [name for name in STAGE_MS if getattr(self.config.stages, name)]
        total = sum(STAGE_MS[name] for name in on)
        timed = {"qkv": 1.0, "attention": 3.0, "prediction": 1.0, "transfer": 2.0}
        if self.joined is not None:
            timed |= {"all_reduce": 0.5 + self.rank, "output_ffn": 2.5 + self.rank}
        clocks = CLOCKS_MS * len(timed) if stages else 0.0
        return StepTimes(
            step_ms=tuple(total + clocks + 0.01 * i for i in range(steps)),
            stage_ms=timed if stages else {},
            raw_stage_ms={name: ms + CLOCKS_MS for name, ms in timed.items()} if stages else {},
            moved_units=units,
            moved_bytes=units * self.config.unit_bytes,
            mirrored_bytes=0,
        )

    def verify(self) -> Verification:
        """Check the units of the last step."""
        part = self._part(self.executed - 1)
        wrong = wrong_units(self.pool[self._slots(part)], self.moves.host_unit[part])
        return Verification(len(wrong), int(wrong.sum()), self.config.host_aliased)

    def close(self) -> None:
        """Forget the pool."""
        self.closed = True

    def _part(self, executed: int) -> slice:
        layers = self.config.shape.layers
        first = executed % self.moves.steps * layers
        return slice(int(self.moves.offset[first]), int(self.moves.offset[first + layers]))

    def _slots(self, part: slice) -> np.ndarray:
        moves, c = self.moves, self.config
        counts = np.diff(moves.offset)
        layer = np.repeat(np.arange(len(counts)) % c.shape.layers, counts)[part]
        pair = moves.row[part].astype(np.int64) * c.shape.kv_heads + moves.head[part]
        return (layer * c.pairs + pair) * c.slots_per_pair + moves.slot[part]

    def _one(self) -> int:
        FakeStep.log.append((self.rank, "step"))
        if self.executed == self.fails_at.get(self.rank):
            raise RunFailed("the device fell over")
        if self.joined is not None and self.config.stages.all_reduce:
            self.x.fill_(1 + self.rank)
            reduce = self.joined.checked if self.checking else self.joined.plain
            for site in range(2 * self.config.shape.layers):
                reduce(self.x, site)
        part = self._part(self.executed)
        slots = self._slots(part)
        kept = slice(0, len(slots) - self.spoil)
        self.pool[slots[kept]] = stamp(self.moves.host_unit[part][kept], ELEMENTS)
        self.executed += 1
        return len(slots) if self.config.stages.transfer else 0


class FakeTorch:
    """Stand in for torch where only the device is asked for."""

    __version__ = "0.fake"
    version = SimpleNamespace(cuda="0.fake")

    def __init__(self, devices: int) -> None:
        """Pretend to have some devices."""
        properties = SimpleNamespace(name="Fake GPU", multi_processor_count=1, total_memory=1 << 30)
        self.cuda = SimpleNamespace(
            device=self._device,
            device_count=lambda: devices,
            get_device_name=lambda index: "Fake GPU",
            get_device_properties=lambda index: properties,
        )

    @contextmanager
    def _device(self, index: int) -> Iterator[None]:
        yield
