"""Open the executor of a device by name."""

from __future__ import annotations

from gpu_exec.executor import Executor
from gpu_exec.executor_cpu import CpuExecutor
from oasis_sim.engine.schedule import Schedule


def open_executor(
    kind: str, schedule: Schedule, devices: int, host_bytes: int, all_reduce: bool = True
) -> Executor:
    """Return an executor for `kind` cpu or cuda; `host_bytes` limits the host pool per device.

    Several devices sum over each other twice per layer unless `all_reduce` is off. Raises
    UsageError for a split that the model does not allow, GpuUnavailable without a GPU or NCCL.
    """
    if kind == "cpu":
        return CpuExecutor(schedule, devices, host_bytes=host_bytes, all_reduce=all_reduce)
    from gpu_exec.executor_cuda import CudaExecutor

    return CudaExecutor(schedule, devices, host_bytes, all_reduce)
