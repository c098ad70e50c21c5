"""Read one engine's cost model from the `engines` section of a hardware profile."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from oasis_sim.curve import Curve
from oasis_sim.fileio import Fields, read_curve
from oasis_sim.hardware import bounds
from oasis_sim.hardware.profile import (
    EngineCosts,
    Launch,
    LinearEfficiency,
    Prefill,
    Selection,
    Slowdown,
    Transport,
)
from oasis_sim.units import parse_bandwidth, parse_bytes, parse_time

LARGEST_SLOWDOWN = 1000.0
SMALLEST_EFFICIENCY = 1e-3


def read_engine(name: str, fields: Fields) -> EngineCosts:
    """Read the costs of engine `name`; mistakes are noted in `fields`."""
    transports = fields.child("transports")
    inline = fields.flag("prediction_inline", default=False)
    names = transports.keys()
    return EngineCosts(
        name=name,
        source=fields.text("source"),
        linear_efficiency=_read_linear_efficiency(fields.child("linear_efficiency")),
        expert_efficiency=_by_rows(fields.child("expert_efficiency")),
        attention_efficiency=_by_bytes(fields.child("attention_efficiency")),
        dense_attention_efficiency=_by_bytes(fields.child("dense_attention_efficiency")),
        scan_efficiency=_by_bytes(fields.child("scan_efficiency")),
        selection=_read_selection(fields.child("selection")),
        draft_layers=_read_draft_layers(fields),
        launch=_read_launch(fields.child("launch")),
        prefill=_read_prefill(fields.child("prefill")),
        collective_ps=fields.quantity("collective", parse_time, within=bounds.LATENCY),
        transports={key: _read_transport(transports.child(key)) for key in names},
        prediction_slowdown=_read_prediction_slowdown(fields, inline),
        selection_slowdown=_read_slowdown(fields.child("selection_slowdown")),
        hbm_share=fields.number("hbm_share", low=0.01, high=1.0),
        reserved_bytes=fields.quantity("reserved", parse_bytes, within=bounds.SIZE),
        reserved_split_bytes=fields.quantity(
            "reserved_split", parse_bytes, "0 B", within=bounds.SIZE
        ),
        draft_reads_kv=fields.flag("draft_reads_kv", default=False),
        static_batches=fields.flag("static_batches", default=False),
        tensor_parallel=fields.flag("tensor_parallel", default=True),
        collective_apart=fields.flag("collective_apart", default=False),
        prediction_inline=inline,
        lm_head_per_request=fields.flag("lm_head_per_request", default=False),
    )


def _read_linear_efficiency(fields: Fields) -> LinearEfficiency:
    """Read one curve for all linear layers, or one for each group of them."""
    parts = [field.name for field in dataclasses.fields(LinearEfficiency)]
    if not any(fields.written(part) for part in parts):
        return LinearEfficiency.same(_by_rows(fields))
    return LinearEfficiency(**{part: _by_rows(fields.child(part)) for part in parts})


def _read_draft_layers(fields: Fields) -> Curve:
    """Read one number, or a curve by rows."""
    key, most = "draft_layers", 100.0
    if not fields.is_mapping(key):
        return Curve.constant(fields.number(key, high=most))
    child = fields.child(key)
    x = child.numbers("rows", low=0.01, high=1e6)
    return read_curve(child, "rows", x, child.numbers("layers", high=most))


def _by_rows(fields: Fields) -> Curve:
    x = fields.numbers("rows", low=0.01, high=1e6)
    y = fields.numbers("share", low=SMALLEST_EFFICIENCY, high=1.0)
    return read_curve(fields, "rows", x, y)


def _by_bytes(fields: Fields) -> Curve:
    x = fields.quantities("bytes", parse_bytes, within=bounds.CURVE_SIZE)
    y = fields.numbers("share", low=SMALLEST_EFFICIENCY, high=1.0)
    return read_curve(fields, "bytes", x, y)


def _picoseconds(fields: Fields, key: str, unit: str) -> float:
    """Read a cost per item that may be less than a picosecond, in `unit` ("ns" or "ps")."""
    return fields.number(f"{key}_{unit}", high=1e6) * {"ps": 1.0, "ns": 1e3}[unit]


def _read_selection(fields: Fields) -> Selection:
    return Selection(
        fixed_ps=fields.quantity("fixed", parse_time, within=bounds.LAYER_TIME),
        per_head_ps=_picoseconds(fields, "per_head", "ns"),
        per_candidate_ps=_picoseconds(fields, "per_candidate", "ps"),
        per_block_ps=_picoseconds(fields, "per_block", "ns")
        if fields.written("per_block_ns")
        else 0.0,
    )


def _read_launch(fields: Fields) -> Launch:
    return Launch(
        gap_ps=fields.quantity("gap", parse_time, within=bounds.KERNEL_TIME),
        kernels_per_layer=fields.integer("kernels_per_layer", high=1000),
        step_ps=fields.quantity("step", parse_time, within=bounds.STEP_TIME),
        request_ps=fields.quantity("request", parse_time, within=bounds.LAYER_TIME),
        dense_step_ps=fields.quantity("dense_step", parse_time, within=bounds.STEP_TIME),
        dense_request_ps=fields.quantity("dense_request", parse_time, within=bounds.LAYER_TIME),
        join_streams=fields.flag("join_streams", default=False),
    )


def _read_prefill(fields: Fields) -> Prefill:
    return Prefill(
        efficiency=fields.number("efficiency", low=SMALLEST_EFFICIENCY, high=1.0),
        chunk_tokens=fields.integer("chunk_tokens", low=1, high=10_000_000),
        token_layer_ps=fields.quantity(
            "token_layer", parse_time, "0 us", within=bounds.KERNEL_TIME
        ),
    )


def _read_slowdown(fields: Fields) -> Slowdown:
    return Slowdown(
        linear=_factors_by_rows(fields.child("linear")),
        attention=fields.number("attention", low=1.0, high=LARGEST_SLOWDOWN),
        prediction=fields.number("prediction", low=1.0, high=LARGEST_SLOWDOWN),
    )


def _read_prediction_slowdown(fields: Fields, inline: bool) -> Slowdown | None:
    """Read what prediction does to its neighbours; inline it has none."""
    key = "prediction_slowdown"
    if not inline:
        return _read_slowdown(fields.child(key))
    if fields.written(key):
        problem = "has no effect with prediction_inline, which runs prediction beside nothing"
        fields.mistake(key, problem, "remove one of the two", None)
        _read_slowdown(fields.child(key))
    return None


def _factors_by_rows(fields: Fields) -> Curve:
    factors = fields.numbers("factor", low=1.0, high=LARGEST_SLOWDOWN)
    return read_curve(fields, "rows", fields.numbers("rows", low=1, high=1e6), factors)


def _read_transport(fields: Fields) -> Transport:
    units = fields.quantities("unit", parse_bytes, within=bounds.CURVE_SIZE)
    rates = fields.quantities("rate", parse_bandwidth, within=bounds.BANDWIDTH)
    return Transport(
        bytes_per_s=read_curve(fields, "unit", units, rates),
        fixed_ps=fields.quantity("fixed", parse_time, within=bounds.LAYER_TIME),
        slowdown=_read_slowdown(fields.child("slowdown")),
        idle_speedup=_read_idle_speedup(fields, units),
        linear_covered=_given_factors(fields, "linear_covered"),
        qkv_slowdown=_given_factors(fields, "qkv_slowdown"),
    )


def _given_factors(fields: Fields, key: str) -> Curve | None:
    """Read factors by rows that need not be there."""
    return _factors_by_rows(fields.child(key)) if fields.written(key) else None


def _read_idle_speedup(fields: Fields, units: Sequence[float]) -> Curve:
    if not fields.written("idle_speedup"):
        return Curve.constant(1.0)
    factors = fields.numbers("idle_speedup", low=1.0, high=LARGEST_SLOWDOWN)
    return read_curve(fields, "idle_speedup", units, factors)
