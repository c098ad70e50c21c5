"""Keep a schedule's move list on the device, and execute it from the host where asked to."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from gpu_exec.kernels import library
from gpu_exec.kernels.arguments import StepArguments
from gpu_exec.kernels.config import StepConfig, StepMoves

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
        """Enqueue the copies of one layer of step ``phase``, each named by the host."""
        memory, config = arguments.memory, arguments.config
        row = self.phase * self.layers + layer
        first, last = int(self._offset[row]), int(self._offset[row + 1])
        if first == last:
            return
        if config.transport == "staged":
            self._copy_staged(arguments, layer, (first, last))
            return
        library.launch(
            "oasis_copy_units",
            library.pointer(memory.pool[layer]),
            library.pointer(memory.host.tensor),
            _array(self._target[first:last]),
            _array(self._source[first:last]),
            library.wide(last - first),
            library.wide(config.unit_bytes),
            int(config.transport == "copy_engine"),
        )

    def _copy_staged(self, arguments: StepArguments, layer: int, part: tuple[int, int]) -> None:
        """Pack on the host, copy in one piece, scatter on the device."""
        import torch

        memory, config = arguments.memory, arguments.config
        count = part[1] - part[0]
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
            _array(self._source[part[0] : part[1]]),
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
