"""The GPU executor: the schedule's steps as graph replays with real kernels on 1 to n devices.

The window runs several times for the step times (median per step), once with clocks inside for
the stages, and once more step by step for the check: after every step the device compares all
bytes of the units it moved with their stamps. Each device holds its share of the heads and is
driven by a thread of its own. Two all-reduces per layer join several devices; in the steps that are
checked they sum known patterns, and after the others all devices must hold the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, TypeVar

import numpy as np

from gpu_exec.executor import DeviceInfo, PoolInfo, StageTimes, StepRun
from gpu_exec.kernels.config import StepTimes
from gpu_exec.nccl import NcclGroup
from gpu_exec.step_plan import StepPlan, last_moves, plan_notes, step_plans
from gpu_exec.sums import PER_LAYER
from oasis_sim.engine.schedule import Schedule
from oasis_sim.errors import GpuUnavailable, RunFailed

TIMED_WINDOWS = 5
FUSED = {"prediction": "prediction+selection"}
WAITING = ("output_ffn", "all_reduce")
"""Stages in which a device waits for the others: the one that comes last shows their own time."""

T = TypeVar("T")


class CudaExecutor:
    """Execute a schedule on `devices` GPUs with a pinned pool of `host_bytes` on each."""

    def __init__(
        self, schedule: Schedule, devices: int, host_bytes: int, all_reduce: bool = True
    ) -> None:
        """Allocate the pools and load the moves; raises GpuUnavailable without enough devices."""
        from gpu_exec.kernels.memory import require_gpu

        torch = require_gpu()
        found = torch.cuda.device_count()
        if found < devices:
            raise GpuUnavailable(f"{devices} devices were asked for, {found} are here")
        self._torch = torch
        self._schedule = schedule
        self._plans = step_plans(schedule, devices, host_bytes)
        self._group = NcclGroup(devices) if all_reduce and devices > 1 else None
        self._threads = ThreadPoolExecutor(max_workers=devices)
        self._steps: list[Any] = []
        self._failed = False
        for device in range(devices):
            with torch.cuda.device(device):
                self._steps.append(self._open(device))
        self._make_ready()
        self._timed: tuple[list[tuple[float, ...]], StageTimes] | None = None
        self.all_reduces = PER_LAYER * schedule.layers if self._group else 0
        nccl = f", NCCL {self._group.version}" if self._group else ""
        self.info = DeviceInfo(
            kind="cuda",
            title=torch.cuda.get_device_name(0),
            driver=f"CUDA {torch.version.cuda}, PyTorch {torch.__version__}{nccl}",
            devices=devices,
            timing="gpu",
        )
        self.notes = plan_notes(schedule, devices)
        self.pools = tuple(_pool_info(plan) for plan in self._plans)

    def reconfigure(self, **changes: Any) -> None:
        """Change on all devices what needs no new memory (as `DecodeStep.reconfigure`)."""
        for device, step in enumerate(self._steps):
            with self._torch.cuda.device(device):
                step.reconfigure(**changes)
        self._make_ready()

    def window_ms(self, windows: int) -> tuple[tuple[float, ...], ...]:
        """Run the whole window several times; return ms of each step, one row per window."""
        count = self._schedule.steps

        def run(device: int) -> tuple[float, ...]:
            return tuple(self._steps[device].run(count * windows, warmup=count).step_ms)

        slowest = np.array(self._each(run)).max(axis=0)
        self._compare_devices()
        return tuple(tuple(row) for row in slowest.reshape(windows, count).tolist())

    def stage_times(self) -> StageTimes:
        """Run the window once with clocks inside; return ms per step of each stage.

        Of several devices the slowest counts, of stages that wait for others (`WAITING`) the one
        that waits least.
        """
        count = self._schedule.steps

        def run(device: int) -> StepTimes:
            times: StepTimes = self._steps[device].run(count, warmup=count, stages=True)
            return times

        runs = self._each(run)
        self._compare_devices()
        return StageTimes(
            stage_ms=_of_devices([times.stage_ms for times in runs]),
            raw_ms=_of_devices([times.raw_stage_ms for times in runs]),
            step_ms=max(float(np.mean(times.step_ms)) for times in runs),
        )

    def run_step(self, index: int) -> StepRun:
        """Execute one step and check it; the times are those of the timed runs."""
        if self._timed is None:
            windows = self.window_ms(TIMED_WINDOWS)
            self._timed = list(zip(*windows, strict=True)), self.stage_times()
        repeats, stages = self._timed[0][index], self._timed[1]
        return self.checked_step(float(np.median(repeats)), stages, repeats)

    def checked_step(
        self,
        step_ms: float = 0.0,
        stages: StageTimes | None = None,
        repeats_ms: tuple[float, ...] = (),
    ) -> StepRun:
        """Execute the next step and check all units and sums of it; report the given times."""
        for step in self._steps:
            step.check_sums(True)
        done = self._each(self._check_step)
        sums = self._each(lambda device: self._steps[device].sums())
        for step in self._steps:
            step.check_sums(False)
        wrong = sum(bad for _, bad in done)
        checked = sum(found for found, _ in sums)
        return StepRun(
            units_moved=sum(times.moved_units for times, _ in done),
            bytes_moved=sum(times.moved_bytes for times, _ in done),
            step_ms=step_ms,
            stages=stages or StageTimes(),
            wrong_units=wrong,
            first_wrong="found on the device" if wrong else None,
            repeats_ms=repeats_ms,
            sums_checked=checked,
            wrong_sums=sum(bad for _, bad in sums) + abs(self._summed() - checked),
        )

    def check_pool(self) -> tuple[int, str | None]:
        """Check on the device that every slot written holds the last unit moved there."""
        wrong = sum(self._each(self._check_slots))
        return wrong, "found on the device" if wrong else None

    def close(self) -> None:
        """Release graphs, device memory, pinned memory and communicators.

        Once a device has failed, what others say while they let go is not told in its place.
        """
        failed = self._failed
        try:
            self._each(lambda device: self._steps[device].close())
        except Exception:
            if not failed:
                raise
        finally:
            self._steps = []
            self._threads.shutdown()
            if self._group is not None:
                self._group.close()

    def _each(self, work: Callable[[int], T]) -> list[T]:
        """Do `work(device)` for every device at once, each on its own thread.

        When one fails, the others may wait for its sums for ever: they are let go first.
        """

        def on_device(device: int) -> T:
            with self._torch.cuda.device(device):
                return work(device)

        futures = [self._threads.submit(on_device, device) for device in range(len(self._plans))]
        failed: BaseException | None = None
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            failed = next((error for future in done if (error := future.exception())), None)
        except BaseException as interrupted:  # noqa: BLE001 - Ctrl-C too; it is raised below
            failed = interrupted
        if failed is None:
            return [future.result() for future in futures]
        self._failed = True
        if self._group is not None:
            self._group.abort()
        wait(futures)
        raise failed

    def _open(self, device: int) -> Any:
        """Allocate a device's step and load its moves."""
        from gpu_exec.step import DecodeStep

        config = self._plans[device].config
        sums = None
        if self._group is not None:
            from gpu_exec.kernels.rank_sum import RankSum

            elements = config.rows * config.shape.hidden
            sums = RankSum(self._group, device, elements, PER_LAYER * config.shape.layers)
        step = DecodeStep(config, sums=sums)
        step.load(self._plans[device].moves)
        return step

    def _make_ready(self) -> None:
        """Try the sums, capture every graph (one device at a time), then run each form once.

        Raises RunFailed when a sum is wrong.
        """
        if wrong := sum(self._each(lambda device: self._steps[device].try_sums())):
            raise RunFailed(f"an all-reduce between the devices gave {wrong} wrong elements")
        for device, step in enumerate(self._steps):
            with self._torch.cuda.device(device):
                step.capture()
                step.capture(stages=True)
                step.check_sums(True)
                step.capture()
                step.check_sums(False)
        for stages in (False, True):
            self._each(partial(self._run_window, stages))

    def _run_window(self, stages: bool, device: int) -> None:
        self._steps[device].run(self._schedule.steps, warmup=0, stages=stages)

    def _summed(self) -> int:
        """Return how many elements the all-reduces of a step sum, those of all devices together."""
        configs = [plan.config for plan in self._plans]
        return self.all_reduces * sum(config.rows * config.shape.hidden for config in configs)

    def _compare_devices(self) -> None:
        """Raise RunFailed unless all devices hold the same bits after a step with all-reduces."""
        if self._group is not None and self._steps[0].config.stages.all_reduce:
            states = set(self._each(lambda device: self._steps[device].hidden_state()))
            if len(states) > 1:
                raise RunFailed("after their all-reduces the devices do not hold the same numbers")

    def _check_step(self, device: int) -> tuple[StepTimes, int]:
        """Run the next step; return its times and how many of its units are wrong or unchecked."""
        step = self._steps[device]
        times = step.run(1, warmup=0)
        if self._plans[device].config.dense:
            return times, 0
        verdict = step.verify()
        return times, verdict.wrong_units + abs(times.moved_units - verdict.checked_units)

    def _check_slots(self, device: int) -> int:
        """Return how many slots do not hold the last unit of the window that was moved there."""
        from gpu_exec.kernels import library
        from gpu_exec.kernels.arguments import StepArguments
        from gpu_exec.kernels.movelist import DeviceMoves

        plan, memory = self._plans[device], self._steps[device].memory
        if plan.config.dense or len(plan.moves.row) == 0:
            return 0
        final = last_moves(plan)
        moves, arguments = DeviceMoves(plan.config, final), StepArguments(plan.config, memory)
        for counter in (memory.phase, memory.checked, memory.wrong):
            counter.zero_()
        counters = (library.pointer(memory.checked), library.pointer(memory.wrong))
        for layer in range(plan.config.shape.layers):
            args = arguments.gather(moves, (layer, layer + 1), None)
            library.launch("oasis_check_stamps", args, *counters)
        return int(memory.wrong.item()) + abs(len(final.row) - int(memory.checked.item()))


def _of_devices(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return each stage of all devices; scan and selection are one where one kernel does both."""
    names = {name for row in rows for name in row}
    fused = FUSED if "selection" not in names else {}
    return {
        fused.get(name, name): (min if name in WAITING else max)(row.get(name, 0.0) for row in rows)
        for name in sorted(names)
    }


def _pool_info(plan: StepPlan) -> PoolInfo:
    config = plan.config
    modelled = 0 if config.dense else plan.plan.placement.modelled_units
    return PoolInfo(
        unit_bytes=config.unit_bytes,
        executed_unit_bytes=config.unit_bytes,
        device_slots=config.pairs * config.slots_per_pair * config.shape.layers,
        modelled_host_units=modelled,
        host_units=0 if config.dense else plan.plan.placement.units,
    )
