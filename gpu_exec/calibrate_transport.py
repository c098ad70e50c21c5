"""Calibrate the transports: rates by unit size, under load, and what they do to neighbours."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_exec.calibration_points import (
    COVER_BATCHES,
    COVER_SHARE,
    HOST_BOUND_BLOCKS,
    HOST_BOUND_COUNT,
    LOAD_BATCH,
    LOAD_SHARE,
    NEIGHBOUR_ROWS,
    OUTLAST_SHARES,
    OVERLAP_SHARE,
    TRANSFER_BATCH,
    TRANSFER_COUNTS,
    UNIT_BLOCKS,
)
from gpu_exec.fit import SMALLEST_SHARE, Line, curve, line_through, slowdown
from gpu_exec.probes import ATTENTION, LINEAR, SCAN, TRANSFER, Notebook, StepProbe, stage_of
from oasis_sim.engine.costs import GpuShare
from oasis_sim.errors import RunFailed
from oasis_sim.hardware import Curve, Slowdown, Transport
from oasis_sim.model import ModelShape
from oasis_sim.scheme import Scheme, with_options
from oasis_sim.units import PS_PER_MS


@dataclass(frozen=True)
class _Beside:
    """Hold ms of a transfer beside work, of the work alone and of the transfer alone."""

    together: float
    work: float
    busy: float


class TransportCalibration:
    """Measure transports through a notebook, for the units of a model and a scheme."""

    def __init__(self, notebook: Notebook, model: ModelShape, scheme: Scheme) -> None:
        """Measure nothing yet, but what the host limits from now on between other probes."""
        self._book, self._model, self._scheme = notebook, model, scheme
        self._share = GpuShare(model, 1)
        for block in HOST_BOUND_BLOCKS:
            notebook.spread(_host_bound_pair(block))

    def _unit_bytes(self, scheme: Scheme) -> int:
        return self._share.unit_bytes(scheme)

    def _line(self, transport: str, block: int) -> Line:
        """Return one layer's transfer time in ms over its bytes, for one unit size."""
        scheme = with_options(self._scheme, block_tokens=block)
        unit = self._unit_bytes(scheme)
        sizes, times = [], []
        for count in TRANSFER_COUNTS[transport]:
            probe = StepProbe(
                (TRANSFER,),
                TRANSFER_BATCH,
                block_tokens=block,
                transport=transport,
                per_head=count,
            )
            sizes.append(TRANSFER_BATCH * self._model.kv_heads * count * unit)
            times.append(self._book.ms(probe) / self._model.layers)
        return line_through(sizes, times)

    def measure(self, name: str) -> Transport:
        """Return rates by unit size, fixed cost, and what the transport does to its neighbours.

        A gather has one speed, that of a transfer twice as long as the work beside it. Copies are
        slower beside work than after it, but for those that the host cannot submit as fast as they
        are made; what a layer's copies cost beyond their bytes is too little to be seen. What
        copies do to their neighbours is measured with single ones.
        """
        slow = HOST_BOUND_BLOCKS if name == "copy_engine" else ()
        alone = {block: self._line(name, block) for block in UNIT_BLOCKS if block not in slow}
        rates = {block: (self._submitted(block),) * 2 for block in slow}
        fixed = 0.0
        if name == "sm_gather":
            fixed, load = alone[UNIT_BLOCKS[0]].fixed, self._load(alone[UNIT_BLOCKS[0]])
            rates = {block: (1.0 / (line.slope * load),) * 2 for block, line in alone.items()}
        else:
            for block, line in alone.items():
                pairs = self._outlasting(name, block, line)
                speed, after = _speeds(pairs, self._model.layers * line.fixed)
                rates[block] = (speed / line.slope, after / line.slope)
        beside, covered = self._neighbours(name, alone)
        units = {
            block: float(self._unit_bytes(with_options(self._scheme, block_tokens=block)))
            for block in UNIT_BLOCKS
        }
        return Transport(
            curve([(units[b], 1e3 * rate) for b, (rate, _) in rates.items()]),
            round(fixed * PS_PER_MS),
            beside,
            curve([(units[b], after / rate) for b, (rate, after) in rates.items()]),
            covered.get("output_ffn"),
            covered.get("qkv"),
        )

    def _neighbours(
        self, name: str, alone: Mapping[int, Line]
    ) -> tuple[Slowdown, Mapping[str, Curve]]:
        """Return what a transport does to its neighbours, and a gather to stages it covers."""
        if name == "copy_engine":
            return self.measure("naive").slowdown, {}
        block = UNIT_BLOCKS[0]
        line = alone[block]
        if name == "naive":
            pace, _ = _speeds(self._outlasting(name, block, line), 0.0)
            slower = Line(line.fixed, line.slope / pace)
            attention = [self._beside(name, slower, StepProbe((ATTENTION,), b)) for b in (56, 112)]
            return self._beside_transfer(name, slower, attention), {}
        covered = {stage: self._covered(line, stage) for stage in ("qkv", ATTENTION, "output_ffn")}
        slower = Line(line.fixed, line.slope * self._load(line))
        return self._beside_transfer(name, slower, covered[ATTENTION].y), covered

    def _submitted(self, block: int) -> float:
        """Return bytes per ms of copies that the host limits, beside work and after it.

        The work, linear layers and attention in turn, takes about half of the time.
        """
        pair = _host_bound_pair(block)
        scheme = with_options(self._scheme, block_tokens=block)
        units = LOAD_BATCH * self._model.kv_heads * HOST_BOUND_COUNT * self._model.layers
        work = self._book.ms(StepProbe((LINEAR, ATTENTION), LOAD_BATCH, block_tokens=block))
        time = self._book.ms(pair) - work / self._model.layers
        return units * self._unit_bytes(scheme) / time

    def _load(self, line: Line) -> float:
        """Return how much longer a gather takes beside linear layers or attention, as a whole."""
        ratios = []
        for stage in (LINEAR, ATTENTION):
            alone = StepProbe((stage,), LOAD_BATCH, block_tokens=UNIT_BLOCKS[0])
            found = self._beside_work("sm_gather", line, alone, LOAD_SHARE)
            ratios.append(found.together / found.busy)
        return max(1.0, statistics.mean(ratios))

    def _outlasting(self, name: str, block: int, line: Line) -> list[tuple[_Beside, _Beside]]:
        """Return two transfers that outlast linear layers, and two that outlast attention."""
        probes = [
            StepProbe((stage,), LOAD_BATCH, block_tokens=block) for stage in (LINEAR, ATTENTION)
        ]
        short, long = OUTLAST_SHARES
        return [
            (self._beside_work(name, line, p, short), self._beside_work(name, line, p, long))
            for p in probes
        ]

    def _beside_work(
        self, name: str, line: Line, alone: StepProbe, share_of_time: float
    ) -> _Beside:
        """Measure a transfer beside shorter work; it starts after the work's first layer."""
        first = self._book.ms(alone) / self._model.layers
        pair, busy = self._with_transfer(name, line, alone, share_of_time)
        return _Beside(self._book.ms(pair) - first, self._book.ms(alone) - first, busy)

    def _with_transfer(
        self, name: str, line: Line, alone: StepProbe, share_of_time: float
    ) -> tuple[StepProbe, float]:
        """Return a probe beside a transfer of that share of its time, and the transfer's ms."""
        time, layers = self._book.ms(alone), self._model.layers
        scheme = with_options(self._scheme, block_tokens=alone.block_tokens)
        unit = self._unit_bytes(scheme)
        head_bytes = alone.batch * self._model.kv_heads * unit
        room = (share_of_time * time / layers - line.fixed) / line.slope
        per_head = max(room, unit) / head_bytes
        pair = replace(alone, stages=(*alone.stages, TRANSFER), transport=name, per_head=per_head)
        return pair, layers * (line.fixed + line.slope * head_bytes * per_head)

    def _beside_transfer(self, name: str, line: Line, attention: Sequence[float]) -> Slowdown:
        """Return slowdowns; that of attention is the mean of those given."""
        linear = [
            (2.0 * b, self._beside(name, line, StepProbe((LINEAR,), b)))
            for b in NEIGHBOUR_ROWS[name]
        ]
        scan = self._beside(name, line, StepProbe((SCAN,), 88, 24_576))
        return Slowdown(curve(linear), statistics.mean(attention), scan)

    def _beside(self, name: str, line: Line, alone: StepProbe) -> float:
        """Return the slowdown of a probe beside a transfer that covers most of it."""
        pair, busy = self._with_transfer(name, line, alone, OVERLAP_SHARE)
        return slowdown(self._book.ms(alone), busy, self._book.ms(pair))

    def _covered(self, line: Line, stage: str) -> Curve:
        """Return the slowdown of linear layers or attention that a gather covers whole, by rows.

        By clocks in a step of linear layers and attention beside which it never ends, over those
        in one without it. (It begins behind the first QKV: 1 of 36 is not covered.)
        """
        points = []
        for batch in COVER_BATCHES:
            alone = StepProbe((LINEAR, ATTENTION), batch)
            pair, _ = self._with_transfer("sm_gather", line, alone, COVER_SHARE)
            slower, time = (self._book.ms(stage_of(step, stage)) for step in (pair, alone))
            points.append((2.0 * batch, max(1.0, slower / time)))
        return curve(points)


def _speeds(pairs: Sequence[tuple[_Beside, _Beside]], fixed: float) -> tuple[float, float]:
    """Return the speed of transfers beside work and once that is done, in units of them alone.

    What the longer of two takes more, it takes after the work; what the shorter has left then, it
    has not done beside it. Of what they take alone, `fixed` ms do not count. Raises RunFailed when
    the two are alike.
    """
    more_ms = longer_ms = done_ms = work_ms = 0.0
    for short, long in pairs:
        longer, more = long.busy - short.busy, long.together - short.together
        if longer <= 0:
            raise RunFailed(
                "a single unit takes as long as all the work of a step, so that transfers of two "
                "lengths cannot be told apart; the readings of transfers or of this work are wrong"
            )
        after = longer / max(more, SMALLEST_SHARE * longer)
        more_ms, longer_ms = more_ms + more, longer_ms + longer
        done_ms = done_ms + short.busy - fixed - (short.together - short.work) * after
        work_ms = work_ms + short.work
    after = longer_ms / max(more_ms, SMALLEST_SHARE * longer_ms)
    return min(after, max(SMALLEST_SHARE, done_ms / work_ms)), after


def _host_bound_pair(block: int) -> StepProbe:
    """Return copies that the host submits too slowly, beside linear layers and attention."""
    return StepProbe(
        (LINEAR, ATTENTION, TRANSFER),
        LOAD_BATCH,
        block_tokens=block,
        transport="copy_engine",
        per_head=HOST_BOUND_COUNT,
    )
