"""Calibration: micro-benchmarks of one card become the cost model of the engine `gpu_exec`.

Every number comes from kernels that run alone, in turn or beside each other; no whole step with
transfers is ever fitted (those are what `validate` judges by). Batches and contexts here do not
occur there.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from gpu_exec.calibrate_foreground import Foreground
from gpu_exec.calibrate_transport import TransportCalibration
from gpu_exec.calibration_points import (
    BACKGROUND_BATCHES,
    DRAFT_BATCHES,
    PAIR_BATCHES,
    SELECTION_POINTS,
    TRANSFER_COUNTS,
)
from gpu_exec.fit import curve, rising_line, slowdown
from gpu_exec.probes import (
    ATTENTION,
    DRAFT,
    LINEAR,
    SCAN,
    SELECTION,
    Notebook,
    StepProbe,
    stage_of,
)
from oasis_sim.engine.costs import GpuShare
from oasis_sim.hardware import (
    Curve,
    EngineCosts,
    HardwareProfile,
    Prefill,
    Selection,
    Slowdown,
)
from oasis_sim.model import ModelShape
from oasis_sim.scheme import load_scheme
from oasis_sim.units import PS_PER_MS


@dataclass(frozen=True)
class Kept:
    """Hold what calibration does not measure and takes from the base profile."""

    expert_efficiency: Curve
    prefill: Prefill
    collective_ps: int
    collective_apart: bool
    hbm_share: float
    reserved_bytes: int

    @classmethod
    def of(cls, costs: EngineCosts) -> Kept:
        """Take these parts of an engine's costs."""
        return cls(
            costs.expert_efficiency,
            costs.prefill,
            costs.collective_ps,
            costs.collective_apart,
            costs.hbm_share,
            costs.reserved_bytes,
        )


class Calibration:
    """Measure one card through a notebook and derive the cost model; `profile` gives the limits."""

    def __init__(
        self, notebook: Notebook, profile: HardwareProfile, model: ModelShape, kept: Kept
    ) -> None:
        """Measure the compute stream, which other numbers build on."""
        self._book = notebook
        self._profile = profile
        self._model = model
        self._kept = kept
        self._scheme = load_scheme("oasis")
        self._transports = TransportCalibration(notebook, model, self._scheme)
        self._foreground = Foreground(notebook, profile, model, self._scheme)

    def costs(self, source: str) -> EngineCosts:
        """Run every probe and return the cost model."""
        foreground, selection = self._foreground, self._selection()
        return EngineCosts(
            name="gpu_exec",
            source=source,
            linear_efficiency=foreground.linear,
            expert_efficiency=self._kept.expert_efficiency,
            attention_efficiency=foreground.attention,
            dense_attention_efficiency=foreground.dense_attention,
            scan_efficiency=foreground.scan,
            selection=selection,
            draft_layers=curve([self._draft_point(batch) for batch in DRAFT_BATCHES]),
            launch=foreground.launch(),
            prefill=self._kept.prefill,
            collective_ps=self._kept.collective_ps,
            collective_apart=self._kept.collective_apart,
            transports={name: self._transports.measure(name) for name in TRANSFER_COUNTS},
            prediction_slowdown=None,
            selection_slowdown=self._beside_selection(selection),
            hbm_share=self._kept.hbm_share,
            reserved_bytes=self._kept.reserved_bytes,
            draft_reads_kv=True,
            prediction_inline=True,
            lm_head_per_request=True,
        )

    def _draft_point(self, batch: int) -> tuple[float, float]:
        """Return rows, and the linear layers of the draft forward in units of one of the target.

        By clocks around it. Its attention over its own KV is priced as dense attention and taken
        off first.
        """
        foreground, layers = self._foreground, self._model.layers
        probe = StepProbe((LINEAR, DRAFT), batch)
        token = GpuShare(self._model, 1).draft_bytes_token(self._scheme)
        size = float(batch * probe.context_tokens * token)
        read = foreground.read_ms(size) / foreground.dense_attention.at(size) / layers
        layer = foreground.linear_ms(batch, ("qkv", "output_ffn")) / layers
        draft = self._book.ms(stage_of(probe, "draft"))
        return 2.0 * batch, max(0.0, (draft - read) / layer)

    # Selection -------------------------------------------------------------------------------

    def _selection(self) -> Selection:
        """Split selection's time beside attention: fixed, per head, per block of a request."""
        points = [
            (b, c // self._scheme.block_tokens, self._selection_ps(b, c))
            for b, c in SELECTION_POINTS
        ]
        slopes = [
            rising_line(
                *zip(*[(blocks, ps) for b, blocks, ps in points if b == batch], strict=True)
            ).slope
            for batch in sorted({b for b, _, _ in points})
        ]
        per_block = statistics.mean(slopes)
        heads = [float(b * self._model.kv_heads) for b, _, _ in points]
        line = rising_line(heads, [ps - per_block * blocks for _, blocks, ps in points])
        return Selection(round(line.fixed), line.slope, 0.0, per_block)

    def _selection_ps(self, batch: int, context: int) -> float:
        """Return the time of one layer's selection from its start to its end."""
        probe = StepProbe((ATTENTION, SCAN, SELECTION), batch, context)
        return self._book.ms(stage_of(probe, "selection")) * PS_PER_MS / self._model.layers

    def _beside_selection(self, selection: Selection) -> Slowdown:
        """Return what selection, which begins with them, does to linear layers and attention."""
        foreground = self._foreground
        linear = [(b, foreground.linear_ms(b)) for b in PAIR_BATCHES]
        attention = [(b, foreground.attention_ms(b)) for b in BACKGROUND_BATCHES]
        factor = self._slowed_by(selection, LINEAR, linear)
        return Slowdown(
            Curve.constant(factor), self._slowed_by(selection, ATTENTION, attention), 1.0
        )

    def _slowed_by(
        self, selection: Selection, stage: str, alone_ms: list[tuple[int, float]]
    ) -> float:
        """Return the factor by which a stage loses in selection's time what that adds to a step.

        Selection is short: what it adds is within a few percent of the steps that it is told from,
        and one factor is taken for all batches.
        """
        added = busy = 0.0
        for batch, _ in alone_ms:
            probe = StepProbe((stage, SCAN), batch)
            blocks = probe.context_tokens // self._scheme.block_tokens
            layer = selection.fixed_ps + selection.per_block_ps * blocks
            layer += selection.per_head_ps * batch * self._model.kv_heads
            busy += self._model.layers * layer / PS_PER_MS
            both = StepProbe((stage, SCAN, SELECTION), batch)
            added += self._book.ms(both) - self._book.ms(probe)
        alone = sum(ms for _, ms in alone_ms)
        return slowdown(alone, busy, alone + added)
