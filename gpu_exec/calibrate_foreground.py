"""Calibrate what the compute stream does: linear layers, attention, scan, and what lies between.

Linear layers and attention are measured as they alternate in a step: alone, linear layers keep the
card so busy that its clock falls, and take up to 5 % longer. The time of the whole step counts;
clocks inside tell how it is split.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from gpu_exec.calibration_points import (
    DENSE_POINTS,
    FOREGROUND_BATCHES,
    REST_BATCHES,
    SCAN_POINTS,
)
from gpu_exec.fit import curve, share
from gpu_exec.probes import (
    ATTENTION,
    LINEAR,
    MIRROR,
    SCAN,
    GapProbe,
    Notebook,
    StepProbe,
    stage_of,
)
from oasis_sim.engine.costs import CostModel
from oasis_sim.hardware import HardwareProfile, Launch, LinearEfficiency
from oasis_sim.model import ModelShape
from oasis_sim.scheme import Scheme
from oasis_sim.units import PS_PER_MS

STAGES = 4
"""Of a layer, with a gap before each: QKV, prediction, attention, output and FFN."""
LINEAR_PARTS = ("qkv", "output_ffn", "lm_head")
PAIR = ("qkv", "attention", "output_ffn", "lm_head")
PAIR_GAPS = 3


class Foreground:
    """Measure the stages of the compute stream through a notebook.

    `linear`, `attention`, `dense_attention` and `scan` are the efficiencies. With the gaps of each
    layer and the rest that `launch` states, they add up to the steps they are from.
    """

    def __init__(
        self, notebook: Notebook, profile: HardwareProfile, model: ModelShape, scheme: Scheme
    ) -> None:
        """Measure them all; `profile` gives the limits that they are shares of."""
        self._book, self._layers, self._scheme = notebook, model.layers, scheme
        self._ideal = CostModel(profile, "roofline", model, scheme, 1)
        self._gap_ms = notebook.ms(GapProbe())
        self._gaps = self._visible_gaps()
        split = {batch: self._split(batch) for batch in FOREGROUND_BATCHES}
        self.linear = LinearEfficiency(
            **{
                name: curve([self._linear_point(name, b, split[b][name]) for b in split])
                for name in LINEAR_PARTS
            }
        )
        sizes = {batch: self.attended_bytes(batch) for batch in split}
        self.attention = curve(
            [(sizes[b], share(self.read_ms(sizes[b]), split[b]["attention"])) for b in split]
        )
        self.dense_attention = curve([self._dense_point(*point) for point in DENSE_POINTS])
        self.scan = curve([self._scan_point(*point) for point in SCAN_POINTS])

    def linear_ms(
        self, batch: int, parts: Sequence[str] = LINEAR_PARTS, *, draft_row: bool = True
    ) -> float:
        """Return what groups of linear layers take in a step of so many requests."""
        rows = {name: self._rows(name, batch, draft_row=draft_row) for name in parts}
        return sum(self._ideal_ms(p, n) / self.linear.of(p).at(n) for p, n in rows.items())

    def attention_ms(self, batch: int) -> float:
        """Return what sparse attention takes in a step."""
        size = self.attended_bytes(batch)
        return self.read_ms(size) / self.attention.at(size)

    def attended_bytes(self, batch: int) -> float:
        """Return what a layer's attention reads; of the local block the simulator counts half."""
        block = self._scheme.block_tokens
        tokens = self._scheme.chosen_blocks * block + (block + 1) / 2
        return batch * tokens * self._ideal.share.kv_bytes_layer

    def read_ms(self, layer_bytes: float) -> float:
        """Return the ideal time to read these bytes in every layer."""
        return self._layers * layer_bytes * self._ideal.hbm_ps_per_byte(1.0) / PS_PER_MS

    def stages_ms(self, probe: StepProbe, names: Sequence[str], gaps: int) -> dict[str, float]:
        """Return stages that are all of a step: its time without gaps, split as clocks say."""
        stages = {name: self._book.ms(stage_of(probe, name)) for name in names}
        scale = (self._book.ms(probe) - self._gaps_ms(gaps)) / sum(stages.values())
        return {name: scale * ms for name, ms in stages.items()}

    def launch(self) -> Launch:
        """Return the gaps, and what a step takes beyond its stages and gaps."""
        return Launch(
            gap_ps=round(self._gap_ms * PS_PER_MS),
            kernels_per_layer=self._gaps,
            step_ps=self._rest_ps([self._rest_ms(batch) for batch in REST_BATCHES]),
            request_ps=0,
            dense_step_ps=self._rest_ps([self._dense_rest_ms(batch) for batch in REST_BATCHES]),
            dense_request_ps=0,
            join_streams=True,
        )

    # Stages ----------------------------------------------------------------------------------

    def _visible_gaps(self) -> int:
        """Return how many launch gaps a layer has between its stages, at most one before each.

        What a step takes beyond its stages says so: kernels that are launched early start without.
        """
        beyond = []
        for batch in REST_BATCHES:
            probe = StepProbe((LINEAR, ATTENTION), batch)
            stages = sum(self._book.ms(stage_of(probe, name)) for name in PAIR)
            beyond.append(self._book.ms(probe) - stages)
        gaps = statistics.mean(beyond) / (self._gap_ms * self._layers)
        return min(STAGES, max(0, round(gaps * STAGES / PAIR_GAPS)))

    def _gaps_ms(self, stages: int) -> float:
        return self._gap_ms * stages * self._gaps / STAGES * self._layers

    def _split(self, batch: int) -> dict[str, float]:
        return self.stages_ms(StepProbe((LINEAR, ATTENTION), batch), PAIR, PAIR_GAPS)

    def _dense_point(self, batch: int, context: int) -> tuple[float, float]:
        size = float(batch * context * self._ideal.share.kv_bytes_layer)
        time = self._book.ms(StepProbe((ATTENTION,), batch, context, dense=True))
        return size, share(self.read_ms(size), time - self._gaps_ms(1))

    def _scan_point(self, batch: int, context: int) -> tuple[float, float]:
        probe = StepProbe((ATTENTION, SCAN), batch, context)
        size = self._scanned_bytes(batch, context)
        found = self.stages_ms(probe, ("attention", "prediction"), 2)
        return size, share(self.read_ms(size), found["prediction"])

    def _scanned_bytes(self, batch: int, context: int) -> float:
        blocks = context // self._scheme.block_tokens
        return float(batch * blocks * self._ideal.scan_bytes_per_block())

    def _linear_point(self, name: str, batch: int, time_ms: float) -> tuple[float, float]:
        rows = self._rows(name, batch, draft_row=True)
        return float(rows), share(self._ideal_ms(name, rows), time_ms)

    def _rows(self, name: str, batch: int, *, draft_row: bool) -> int:
        """Return the rows of a group of linear layers; draft rows do not reach the LM head."""
        return 2 * batch if draft_row and name != "lm_head" else batch

    def _ideal_ms(self, name: str, rows: int) -> float:
        """Return the roofline of a group of linear layers in a whole step."""
        part = getattr(self._ideal.share, name)
        count = 1 if part is self._ideal.share.lm_head else self._layers
        return count * self._ideal.linear_ps(part, rows) / PS_PER_MS

    # The rest of a step ----------------------------------------------------------------------

    def _rest_ms(self, batch: int) -> float:
        """Return what a step with the copy of new blocks takes beyond stages and gaps."""
        probe = StepProbe((LINEAR, ATTENTION, SCAN, MIRROR), batch)
        size = self._scanned_bytes(batch, probe.context_tokens)
        stages = self.linear_ms(batch) + self.attention_ms(batch)
        stages += self.read_ms(size) / self.scan.at(size)
        return self._book.ms(probe) - stages - self._gaps_ms(STAGES)

    def _dense_rest_ms(self, batch: int) -> float:
        probe = StepProbe((LINEAR, ATTENTION), batch, dense=True)
        size = float(batch * probe.context_tokens * self._ideal.share.kv_bytes_layer)
        stages = self.linear_ms(batch, draft_row=False)
        stages += self.read_ms(size) / self.dense_attention.at(size)
        return self._book.ms(probe) - stages - self._gaps_ms(STAGES)

    def _rest_ps(self, rests_ms: Sequence[float]) -> int:
        return max(0, round(statistics.mean(rests_ms) * PS_PER_MS))
