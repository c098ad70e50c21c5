"""Write a hardware profile as YAML that `load_profile` reads back: limits, sources, one engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from oasis_sim.hardware import (
    Curve,
    EngineCosts,
    HardwareProfile,
    LinearEfficiency,
    Slowdown,
    Transport,
)

SIGNIFICANT = 6
MEASURED_HERE = "by one reduction of 4 GiB here"


@dataclass(frozen=True)
class MeasuredLimits:
    """Hold what calibration measured of the card itself."""

    hbm_bytes: int
    read_bytes_per_s: float
    h2d_bytes_per_s: float
    d2h_bytes_per_s: float


def profile_yaml(
    name: str,
    base: HardwareProfile,
    limits: MeasuredLimits,
    costs: EngineCosts,
    header: Sequence[str],
) -> str:
    """Return the text of a profile: the base's limits, measured ones in their place, the engine.

    `header` lines become comments at the top.
    """
    usable = min(limits.h2d_bytes_per_s, base.pcie.bytes_per_s)
    read = limits.read_bytes_per_s / 1e12
    known = base.sources["gpu.hbm_bandwidth"].split("; ")
    kept = "; ".join(part for part in known if not part.endswith(MEASURED_HERE))
    bandwidth_source = f"{kept}; {_n(read)} TB/s {MEASURED_HERE}"
    pcie_source = f"measured: one large DMA; device to host {_n(limits.d2h_bytes_per_s / 1e9)} GB/s"
    lines = [
        *(f"# {_printing(line)}" for line in header),
        "schema_version: 1",
        f"name: {_text(name)}",
        "origin: measured",
        "gpu:",
        f"  title: {_text(base.gpu.title)}",
        _sourced("sms", str(base.gpu.sms), base.sources["gpu.sms"]),
        _sourced(
            "bf16_dense", f"{_n(base.gpu.bf16_flops_per_s)} FLOP/s", base.sources["gpu.bf16_dense"]
        ),
        _sourced("hbm_capacity", f"{limits.hbm_bytes} B", "measured: reported by the driver"),
        _sourced("hbm_bandwidth", f"{_n(base.gpu.hbm_bytes_per_s)} B/s", bandwidth_source),
        *_power_lines(base),
        "pcie:",
        _sourced("bandwidth", f"{_n(base.pcie.bytes_per_s)} B/s", base.sources["pcie.bandwidth"]),
        _sourced("usable_bandwidth", f"{_n(usable)} B/s", pcie_source),
        _sourced("latency", f"{base.pcie.latency_ps} ps", base.sources["pcie.latency"]),
    ]
    if base.nvlink is not None:
        lines += [
            "nvlink:",
            _sourced(
                "bandwidth", f"{_n(base.nvlink.bytes_per_s)} B/s", base.sources["nvlink.bandwidth"]
            ),
            _sourced(
                "usable_bandwidth",
                f"{_n(base.nvlink.usable_bytes_per_s)} B/s",
                base.sources["nvlink.usable_bandwidth"],
            ),
            _sourced("latency", f"{base.nvlink.latency_ps} ps", base.sources["nvlink.latency"]),
        ]
    lines += [
        "host:",
        _sourced(
            "kv_capacity_per_gpu",
            f"{base.host.kv_bytes} B",
            base.sources["host.kv_capacity_per_gpu"],
        ),
        _sourced(
            "dram_bandwidth_per_gpu",
            f"{_n(base.host.dram_bytes_per_s)} B/s",
            base.sources["host.dram_bandwidth_per_gpu"],
        ),
        "engines:",
        *(f"  {line}" for line in engine_lines(costs)),
    ]
    return "\n".join(lines) + "\n"


def _power_lines(base: HardwareProfile) -> list[str]:
    """Return the board's power, where the base knows it."""
    power_w = base.gpu.power_w
    if power_w is None:
        return []
    return [_sourced("power", f"{_n(power_w)} W", base.sources["gpu.power"])]


def engine_lines(costs: EngineCosts) -> list[str]:
    """Return one engine's section, keys as `oasis_sim.hardware.load_engine` reads them."""
    launch, selection = costs.launch, costs.selection
    by_bytes = ("attention_efficiency", "dense_attention_efficiency", "scan_efficiency")
    pick = (
        f"fixed: {selection.fixed_ps} ps, per_head_ns: {_n(selection.per_head_ps / 1e3)}, "
        f"per_candidate_ps: {_n(selection.per_candidate_ps)}, "
        f"per_block_ns: {_n(selection.per_block_ps / 1e3)}"
    )
    gaps = (
        f"gap: {launch.gap_ps} ps, kernels_per_layer: {launch.kernels_per_layer}, "
        f"step: {launch.step_ps} ps, request: {launch.request_ps} ps, "
        f"dense_step: {launch.dense_step_ps} ps, dense_request: {launch.dense_request_ps} ps, "
        f"join_streams: {_flag(launch.join_streams)}"
    )
    chunk = costs.prefill.chunk_tokens
    lines = [
        f"{costs.name}:",
        f"  source: {_text(costs.source)}",
        *_linear_lines(costs.linear_efficiency),
        f"  expert_efficiency: {_curve(costs.expert_efficiency, 'rows', 'share')}",
        *(f"  {key}: {_curve(getattr(costs, key), 'bytes', 'share', ' B')}" for key in by_bytes),
        f"  selection: {{{pick}}}",
        f"  draft_layers: {_curve(costs.draft_layers, 'rows', 'layers')}",
        f"  draft_reads_kv: {_flag(costs.draft_reads_kv)}",
        f"  lm_head_per_request: {_flag(costs.lm_head_per_request)}",
        f"  launch: {{{gaps}}}",
        f"  prefill: {{efficiency: {_n(costs.prefill.efficiency)}, chunk_tokens: {chunk}}}",
        f"  collective: {costs.collective_ps} ps",
        f"  collective_apart: {_flag(costs.collective_apart)}",
        _prediction_line(costs.prediction_slowdown),
        f"  selection_slowdown: {_slowdown(costs.selection_slowdown)}",
        "  transports:",
    ]
    for name, transport in costs.transports.items():
        lines += [f"    {line}" for line in _transport_lines(name, transport)]
    lines += [f"  hbm_share: {_n(costs.hbm_share)}", f"  reserved: {costs.reserved_bytes} B"]
    return lines


def _linear_lines(efficiency: LinearEfficiency) -> list[str]:
    """Return one curve where all groups of linear layers share it, else a curve for each."""
    if efficiency == LinearEfficiency.same(efficiency.qkv):
        return [f"  linear_efficiency: {_curve(efficiency.qkv, 'rows', 'share')}"]
    each = {field.name: efficiency.of(field.name) for field in fields(LinearEfficiency)}
    parts = [f"    {part}: {_curve(share, 'rows', 'share')}" for part, share in each.items()]
    return ["  linear_efficiency:", *parts]


def _prediction_line(slowdown: Slowdown | None) -> str:
    """Return what prediction does beside the foreground, or that it is a part of it."""
    if slowdown is None:
        return "  prediction_inline: true"
    return f"  prediction_slowdown: {_slowdown(slowdown)}"


def _transport_lines(name: str, transport: Transport) -> list[str]:
    units = ", ".join(f"{round(x)} B" for x in transport.bytes_per_s.x)
    rates = ", ".join(f"{_n(y)} B/s" for y in transport.bytes_per_s.y)
    idle = ", ".join(_n(transport.idle_speedup.at(x)) for x in transport.bytes_per_s.x)
    lines = [
        f"{name}:",
        f"  unit: [{units}]",
        f"  rate: [{rates}]",
        f"  idle_speedup: [{idle}]",
        f"  fixed: {transport.fixed_ps} ps",
        f"  slowdown: {_slowdown(transport.slowdown)}",
    ]
    for key in ("linear_covered", "qkv_slowdown"):
        factors = getattr(transport, key)
        if factors is not None:
            lines.append(f"  {key}: {_curve(factors, 'rows', 'factor')}")
    return lines


def _slowdown(slowdown: Slowdown) -> str:
    return (
        f"{{linear: {_curve(slowdown.linear, 'rows', 'factor')}, "
        f"attention: {_n(slowdown.attention)}, prediction: {_n(slowdown.prediction)}}}"
    )


def _curve(curve: Curve, x_name: str, y_name: str, unit: str = "") -> str:
    xs = ", ".join(f"{_n(x)}{unit}" for x in curve.x)
    ys = ", ".join(_n(y) for y in curve.y)
    return f"{{{x_name}: [{xs}], {y_name}: [{ys}]}}"


def _sourced(key: str, value: str, source: str) -> str:
    return f"  {key}: {{value: {value}, source: {_text(source)}}}"


def _n(value: float) -> str:
    """Write a number with few digits, plain where possible."""
    rounded = float(f"{value:.{SIGNIFICANT}g}")
    return str(int(rounded)) if rounded.is_integer() else repr(rounded)


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _text(text: str) -> str:
    """Quote a string for YAML."""
    safe = _printing(text)
    return '"' + safe.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _printing(text: str) -> str:
    """Return text on one line; control characters do not survive."""
    return "".join(c if c.isprintable() else " " for c in text)
