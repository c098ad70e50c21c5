"""The backend of `oasis-sim quality --device cuda`: paged memory and the kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpu_exec.model.kernels import CudaKernels, PageKernels
from gpu_exec.model.memory import DenseLayer, OffloadedLayer, always_slots
from gpu_exec.model.page import PageShape
from gpu_exec.model.rows import DecisionWatcher, DenseMemory, PagedMemory, Steer
from oasis_sim.errors import InputError
from oasis_sim.quality.backend import LoopPlan, layer_stores
from oasis_sim.quality.start import Start
from oasis_sim.record.backend import RecordedModel
from oasis_sim.residency.rule import ResidencyRule

MakeKernels = Callable[[PageShape, Any], PageKernels]


class PagedBackend:
    """Make memories whose full-attention layers are read, scanned and filled by kernels alone."""

    def __init__(
        self,
        name: str,
        query_heads: int,
        make_kernels: MakeKernels = CudaKernels,
        watch: DecisionWatcher | None = None,
        steer: Steer | None = None,
    ) -> None:
        """Name who computes; ``watch`` sees every decision, ``steer`` may change it."""
        self._name = name
        self._query_heads = query_heads
        self._make = make_kernels
        self._watch = watch
        self._steer = steer
        self.kernels: list[PageKernels] = []

    def header(self) -> dict[str, Any]:
        """Say who attends."""
        return {"attention": self._name}

    def sparse(self, start: Start, plans: Sequence[LoopPlan]) -> PagedMemory:
        """Return the memory of one row per plan.

        Raises InputError for a rule or shape that the kernels do not do.
        """
        rules = [plan.rule for plan in plans]
        check_rules(rules)
        if not all(plan.plain for plan in plans):
            raise InputError(
                "the GPU path scans exact extreme keys, evicts by age and has one cap per head: no "
                "other index, corrected or rehearsed choices, rebuilt keys or caps by step",
                fix="use --device cpu",
            )
        if any(plan.host_8bit for plan in plans):
            raise InputError("the GPU path keeps 16 bits on the host", fix="use --device cpu")
        check_join(start.bound_join)
        slots = max(rule.pool_blocks for rule in rules) + always_slots(rules[0])
        shape, device = self._shape(start, len(plans), slots), start.store.keys(0).device
        kernels = self._kernels(shape, device)
        layers = {
            layer: OffloadedLayer(shape, rules, *_prompt(start, layer), device)
            for layer in start.full_layers
        }
        stores = layer_stores(start, len(plans))
        return PagedMemory(plans, kernels, layers, stores, device, self._watch, self._steer)

    def full(self, start: Start, rows: int) -> DenseMemory:
        """Return the memory of rows with full attention."""
        shape, device = self._shape(start, rows, start.blocks), start.store.keys(0).device
        layers = {
            layer: DenseLayer(shape, *_prompt(start, layer), device) for layer in start.full_layers
        }
        kernels = self._kernels(shape, device)
        stores = layer_stores(start, rows)
        return DenseMemory(rows, kernels, layers, stores, len(start.prompt))

    def _kernels(self, shape: PageShape, device: Any) -> PageKernels:
        self.kernels.append(self._make(shape, device))
        return self.kernels[-1]

    def _shape(self, start: Start, rows: int, slots: int) -> PageShape:
        return PageShape(
            rows=rows,
            heads=start.kv_heads,
            group=self._query_heads // start.kv_heads,
            head_dim=int(start.store.keys(0).shape[2]),
            block_tokens=start.block_tokens,
            blocks=start.blocks,
            slots=slots,
        )


def open_backend(model: RecordedModel) -> PagedBackend:
    """Return the backend of a model on a GPU.

    Raises GpuUnavailable where the kernels do not run.
    """
    from gpu_exec.kernels.memory import require_gpu

    require_gpu()
    name = f"paged, kernels of {model.device}, bfloat16 keys and values"
    return PagedBackend(name, model.query_heads)


def _prompt(start: Start, layer: int) -> tuple[Any, Any]:
    """Return a layer's keys and values of the prompt, [H, S, d]."""
    tokens = len(start.prompt)
    return start.store.keys(layer)[:, :tokens], start.store.values(layer)[:, :tokens]


def check_rules(rules: Sequence[ResidencyRule]) -> None:
    """Raise InputError, with the reason, for rules that the paged step does not do."""
    always = {(rule.sink_blocks, rule.recent_blocks) for rule in rules}
    reasons = {
        "schemes of different sink or recent blocks side by side": len(always) > 1,
        "schemes without a recent block": any(rule.recent_blocks < 1 for rule in rules),
        "caps shared over heads": any(
            rule.cap_over_heads or rule.cap_over_layers for rule in rules
        ),
        "eviction by attention": any(rule.least_attended for rule in rules),
    }
    for reason, applies in reasons.items():
        if applies:
            raise InputError(f"the GPU kernels do not do {reason}", fix="use --device cpu")


def check_join(join: str) -> None:
    """Raise InputError for a score that the scan does not compute."""
    if join != "max":
        raise InputError(f"the scan does not join heads by {join}", fix="use --device cpu")
