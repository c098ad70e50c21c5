"""Keep a schedule's move list on the device, and execute it from the host where asked to."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from gpu_exec.kernels import library
from gpu_exec.kernels.abi import CopyArgs
from gpu_exec.kernels.arguments import StepArguments
from gpu_exec.kernels.config import StepConfig, StepMoves
from gpu_exec.kernels.marks import EventMarks, Marks

_PACK_THREADS = 8


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
        self._staging: dict[int, tuple[Any, Any, Any]] = {}

    def units(self, step: int) -> int:
        """Return the moves of one step of the list."""
        first, last = step * self.layers, (step + 1) * self.layers
        return int(self._offset[last] - self._offset[first])

    def copy_from_host(self, arguments: StepArguments, layer: int) -> None:
        """Enqueue the copies of one layer of step ``phase`` on the current stream."""
        if arguments.config.transport == "staged":
            self._copy_staged(arguments, layer)
        else:
            library.launch("oasis_copy_units", self._copies(arguments, (layer, layer + 1)))

    def submit(self, arguments: StepArguments, marks: EventMarks | None) -> None:
        """Submit the copies of step ``phase``, each layer as soon as the step has released it.

        They go to the current stream, timed by ``marks``, and wait for nothing on the device.
        """
        if arguments.config.transport == "staged":
            for layer in range(self.layers):
                arguments.memory.released.wait_for(layer + 1)
                with (marks or Marks()).span("transfer", layer):
                    self._copy_staged(arguments, layer)
            return
        args = self._copies(arguments, (0, self.layers))
        args.released = arguments.memory.released.address
        if marks is not None:
            events = [e for _ in range(self.layers) for e in marks.reserve("transfer")]
            handles = (ctypes.c_void_p * len(events))(*events)
            args.events = ctypes.addressof(handles)
        library.launch("oasis_copy_units", args)

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
            batched=int(config.transport == "copy_engine"),
            in_flight=config.copies_ahead,
        )

    def _copy_staged(self, arguments: StepArguments, layer: int) -> None:
        """Pack on the host, copy in one piece, scatter on the device."""
        import torch

        memory, config = arguments.memory, arguments.config
        row = self.phase * self.layers + layer
        first, last = int(self._offset[row]), int(self._offset[row + 1])
        count = last - first
        if count == 0:
            return
        size = config.unit_bytes // 2
        room = int(np.diff(self._offset).max()) * size
        if layer not in self._staging:
            host = torch.empty(room, dtype=torch.bfloat16, pin_memory=True)
            device = torch.empty(room, dtype=torch.bfloat16, device="cuda")
            self._staging[layer] = (host, device, torch.cuda.Event())
        host, device, done = self._staging[layer]
        done.synchronize()
        library.call(
            "oasis_pack_units",
            library.pointer(host),
            library.pointer(memory.host.tensor),
            _array(self._source[first:last]),
            library.wide(count),
            library.wide(config.unit_bytes),
            _PACK_THREADS,
        )
        device[: count * size].copy_(host[: count * size], non_blocking=True)
        done.record()
        args = arguments.gather(self, (layer, layer + 1))
        library.launch("oasis_scatter", args, library.pointer(device), 32)


def _array(values: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(values.ctypes.data)
