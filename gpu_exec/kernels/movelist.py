"""Keep a schedule's move list on the device, and execute it from the host where asked to."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from gpu_exec.kernels import library
from gpu_exec.kernels.abi import CopyArgs
from gpu_exec.kernels.arguments import StepArguments
from gpu_exec.kernels.config import StepConfig, StepMoves
from gpu_exec.kernels.marks import CopyMarks


class DeviceMoves:
    """Hold the lists of S steps on the device and, for host-driven transports, on the host.

    ``bounds`` int64 [S * L, 2], ``source`` int64 [N] host units, ``target`` int32 [N] units of the
    layer's pool, ``positions`` int32 [S, B].
    """

    def __init__(self, config: StepConfig, moves: StepMoves) -> None:
        import torch

        moves.check(config)
        self.steps, self.layers = moves.steps, config.shape.layers
        pair = moves.row.astype(np.int64) * config.shape.kv_heads + moves.head
        target = (pair * config.slots_per_pair + moves.slot).astype(np.int32)
        self._offset = moves.offset.astype(np.int64)
        self._source = np.ascontiguousarray(moves.host_unit, dtype=np.int64)
        self._target = target.astype(np.int64)
        bounds = np.stack([self._offset[:-1], self._offset[1:]], axis=1)

        def device(values: Any) -> Any:
            padded = values if values.size else np.zeros(1, dtype=values.dtype)
            return torch.from_numpy(np.ascontiguousarray(padded)).cuda()

        self.bounds, self.source = device(bounds), device(self._source)
        self.target = device(target)
        self.positions = device(moves.context_tokens.astype(np.int32))
        self.phase = 0

    def units(self, step: int) -> int:
        """Return the moves of one step of the list."""
        first, last = step * self.layers, (step + 1) * self.layers
        return int(self._offset[last] - self._offset[first])

    def copy_from_host(self, arguments: StepArguments, layer: int) -> None:
        """Enqueue the copies of one layer of step ``phase`` behind the current stream."""
        self._submit(self._copies(arguments, (layer, layer + 1)), arguments)

    def submit(self, arguments: StepArguments, marks: CopyMarks | None) -> None:
        """Submit the copies of step ``phase``, each layer as soon as the step has released it.

        They wait for nothing else on the device; the current stream waits for them. ``marks`` times
        them.
        """
        args = self._copies(arguments, (0, self.layers))
        args.released = arguments.memory.released.address
        if marks is not None:
            events = [e for _ in range(self.layers) for e in marks.reserve("transfer")]
            handles = (ctypes.c_void_p * len(events))(*events)
            args.events = ctypes.addressof(handles)
        self._submit(args, arguments)

    def _submit(self, args: CopyArgs, arguments: StepArguments) -> None:
        config = arguments.config
        batched = config.transport == "copy_engine"
        team = arguments.memory.team(config.copy_threads if batched else 1, config.copies_ahead)
        library.launch("oasis_copy_units", team.handle, args, int(batched))

    def _copies(self, arguments: StepArguments, layers: tuple[int, int]) -> CopyArgs:
        memory, config = arguments.memory, arguments.config
        offset = self._offset[self.phase * self.layers :]
        return CopyArgs(
            pool=memory.pool.data_ptr(),
            host=memory.host.tensor.data_ptr(),
            offset=offset.ctypes.data,
            target=self._target.ctypes.data,
            source=self._source.ctypes.data,
            released=None,
            events=None,
            layer_bytes=memory.pool.stride(0) * 2,
            unit_bytes=config.unit_bytes,
            layer_begin=layers[0],
            layer_end=layers[1],
        )
