"""Calibrate the transports: rates by unit size, under load, and what they do to neighbours."""

from __future__ import annotations

import statistics
from dataclasses import replace

from gpu_exec.calibration_points import (
    COVER_SHARE,
    HOST_BOUND_BLOCKS,
    HOST_BOUND_COUNT,
    LOAD_BATCH,
    LOAD_SHARE,
    NEIGHBOUR_ROWS,
    OUTLAST_SHARES,
    OVERLAP_SHARE,
    PAIR_BATCHES,
    PAUSE_SHARE,
    TRANSFER_BATCH,
    TRANSFER_COUNTS,
    UNIT_BLOCKS,
)
from gpu_exec.fit import SMALLEST_SHARE, Line, curve, line_through, slowdown
from gpu_exec.probes import ATTENTION, LINEAR, SCAN, TRANSFER, Notebook, StepProbe
from oasis_sim.engine.costs import GpuShare
from oasis_sim.hardware import Slowdown, Transport
from oasis_sim.model import ModelShape
from oasis_sim.scheme import Scheme, with_options
from oasis_sim.units import PS_PER_MS


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

        Copies are slower beside work than after it, by unit size. A gather has one speed, that of
        a transfer twice as long as the work beside it; so have copies that the host cannot submit
        as fast as they are made. What copies do to their neighbours is measured with single ones.
        """
        slow = HOST_BOUND_BLOCKS if name == "copy_engine" else ()
        alone = {block: self._line(name, block) for block in UNIT_BLOCKS if block not in slow}
        fixed = alone[UNIT_BLOCKS[-1]].fixed
        alone = {**{block: self._submitted(block, fixed) for block in slow}, **alone}
        first = UNIT_BLOCKS[0]
        if name == "sm_gather":
            speed = 1.0 / self._load(name, first, alone[first])
            speeds = dict.fromkeys(UNIT_BLOCKS, (speed, speed))
        else:
            speeds = {
                block: (1.0, 1.0) if block in slow else self._speeds(name, block, line)
                for block, line in alone.items()
            }
        units = {
            block: float(self._unit_bytes(with_options(self._scheme, block_tokens=block)))
            for block in UNIT_BLOCKS
        }
        loaded = Line(alone[first].fixed, alone[first].slope / speeds[first][0])
        if name == "copy_engine":
            beside = self.measure("naive").slowdown
        else:
            beside = self._beside_transfer(name, loaded)
        covered = None
        if name == "sm_gather":
            covered = curve([(2.0 * b, self._covered(name, loaded, b)) for b in PAIR_BATCHES])
        return Transport(
            curve([(units[b], 1e3 / line.slope * speeds[b][0]) for b, line in alone.items()]),
            round(fixed * PS_PER_MS),
            beside,
            curve([(units[b], speeds[b][1] / speeds[b][0]) for b in UNIT_BLOCKS]),
            covered,
        )

    def _submitted(self, block: int, fixed: float) -> Line:
        """Return one layer's ms over the bytes of copies that the host submits, beside work.

        Its speed is the same beside the work and after it, which takes about half of the time.
        """
        pair = _host_bound_pair(block)
        scheme = with_options(self._scheme, block_tokens=block)
        moved = LOAD_BATCH * self._model.kv_heads * HOST_BOUND_COUNT * self._unit_bytes(scheme)
        work = self._book.ms(StepProbe((LINEAR,), LOAD_BATCH, block_tokens=block))
        layer = (self._book.ms(pair) - work / self._model.layers) / self._model.layers
        return Line(fixed, (layer - fixed) / moved)

    def _load(self, name: str, block: int, line: Line) -> float:
        """Return how much longer a transfer takes beside linear layers or attention, as a whole."""
        ratios = []
        for stage in (LINEAR, ATTENTION):
            alone = StepProbe((stage,), LOAD_BATCH, block_tokens=block)
            together, busy, _ = self._beside_work(name, line, alone, LOAD_SHARE)
            ratios.append(together / busy)
        return max(1.0, statistics.mean(ratios))

    def _speeds(self, name: str, block: int, line: Line) -> tuple[float, float]:
        """Return the speed of a transfer beside work and once that is done, in units of it alone.

        Two transfers that outlast linear layers, and attention: what the longer takes more, it
        takes after them; what the shorter has left then, it has not done beside them.
        """
        more_ms = longer_ms = done_ms = work_ms = 0.0
        for stage in (LINEAR, ATTENTION):
            alone = StepProbe((stage,), LOAD_BATCH, block_tokens=block)
            (short, busy, work), (long, longer, _) = (
                self._beside_work(name, line, alone, share) for share in OUTLAST_SHARES
            )
            after = (longer - busy) / max(long - short, SMALLEST_SHARE * (longer - busy))
            more_ms, longer_ms = more_ms + long - short, longer_ms + longer - busy
            done_ms, work_ms = done_ms + busy - (short - work) * after, work_ms + work
        after = longer_ms / max(more_ms, SMALLEST_SHARE * longer_ms)
        return min(after, max(SMALLEST_SHARE, done_ms / work_ms)), after

    def _beside_work(
        self, name: str, line: Line, alone: StepProbe, share_of_time: float
    ) -> tuple[float, float, float]:
        """Return ms of a transfer beside shorter work, of it alone, and of the work beside it.

        The transfer starts after the work's first layer.
        """
        first = self._book.ms(alone) / self._model.layers
        pair, busy = self._with_transfer(name, line, alone, share_of_time)
        return self._book.ms(pair) - first, busy, self._book.ms(alone) - first

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

    def _beside_transfer(self, name: str, line: Line) -> Slowdown:
        linear = [
            (2.0 * b, self._beside(name, line, StepProbe((LINEAR,), b)))
            for b in NEIGHBOUR_ROWS[name]
        ]
        attention = [self._beside(name, line, StepProbe((ATTENTION,), b)) for b in (56, 112)]
        scan = self._beside(name, line, StepProbe((SCAN,), 88, 24_576))
        return Slowdown(curve(linear), statistics.mean(attention), scan)

    def _beside(self, name: str, line: Line, alone: StepProbe) -> float:
        """Return the slowdown of a probe beside a transfer that covers most of it."""
        pair, busy = self._with_transfer(name, line, alone, OVERLAP_SHARE)
        return slowdown(self._book.ms(alone), busy, self._book.ms(pair))

    def _covered(self, name: str, line: Line, batch: int) -> float:
        """Return the slowdown of linear layers that a transfer covers whole.

        It begins with them in every layer, outlasts them and ends in a pause.
        """
        alone = StepProbe((LINEAR,), batch)
        time = self._book.ms(alone)
        pair, _ = self._with_transfer(name, line, alone, COVER_SHARE)
        pause_us = round(1e3 * PAUSE_SHARE * time / self._model.layers, 1)
        rest = replace(alone, pause_us=pause_us)
        more = self._book.ms(replace(pair, pause_us=pause_us)) - self._book.ms(rest)
        return max(1.0, 1.0 + more / time)


def _host_bound_pair(block: int) -> StepProbe:
    """Return copies that the host submits too slowly, beside linear layers."""
    return StepProbe(
        (LINEAR, TRANSFER),
        LOAD_BATCH,
        block_tokens=block,
        transport="copy_engine",
        per_head=HOST_BOUND_COUNT,
    )
