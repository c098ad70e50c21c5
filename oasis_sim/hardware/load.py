"""Read a hardware profile from YAML: every number with its unit in words and its source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from oasis_sim.errors import InputError
from oasis_sim.fileio import Fields, find_input, load_yaml, printable
from oasis_sim.hardware import bounds
from oasis_sim.hardware.load_engine import read_engine
from oasis_sim.hardware.profile import EngineCosts, Gpu, HardwareProfile, Host, Link
from oasis_sim.hardware.roofline import roofline_costs
from oasis_sim.units import parse_bandwidth, parse_bytes, parse_flops, parse_time

ORIGINS = ("datasheet", "published", "measured")

Quantity = TypeVar("Quantity", int, float)
FLOPS = (parse_flops, bounds.FLOPS)
HBM = (parse_bytes, bounds.HBM)
SIZE = (parse_bytes, bounds.SIZE)
BANDWIDTH = (parse_bandwidth, bounds.BANDWIDTH)
LATENCY = (parse_time, bounds.LATENCY)


def load_profile(name: str) -> HardwareProfile:
    """Return the hardware profile of a shipped name or a YAML file.

    Raises InputError that lists every mistake with its line.
    """
    path = find_input(name, "profile")
    return read_profile(path)


def read_profile(path: Path) -> HardwareProfile:
    """Read one profile file; see docs/hardware-profiles.md for its keys."""
    top = Fields.of(load_yaml(path))
    top.integer("schema_version", low=1, high=1)
    sources: dict[str, str] = {}
    gpu = _read_gpu(top.child("gpu"), sources)
    pcie = _read_link(top.child("pcie"), "pcie", sources)
    nvlink = _read_link(top.child("nvlink"), "nvlink", sources)
    network = _read_link(top.child("network"), "network", sources)
    host = _read_host(top.child("host"), sources)
    name = top.text("name")
    origin = top.text("origin", choices=ORIGINS)
    engines: dict[str, EngineCosts] = {"roofline": roofline_costs(pcie)}
    likes: dict[str, tuple[str, str]] = {}
    if top.has("engines"):
        section = top.child("engines")
        names = section.keys()
        for engine in names:
            fields = section.child(engine)
            if fields.has("like"):
                likes[engine] = (fields.text("like"), fields.text("source"))
            elif engine == "roofline":
                section.mistake(engine, "is derived from the limits", "remove it", None)
            else:
                engines[engine] = read_engine(engine, fields)
    top.finish()
    for engine, (other, source) in likes.items():
        costs, link = _own_engine(other, engine, path)
        engines[engine] = replace(
            on_link(costs, pcie.usable_bytes_per_s / link.usable_bytes_per_s),
            source=f"{source} [{other}: {costs.source}]",
        )
    return HardwareProfile(
        name=name,
        origin=origin,
        gpu=gpu,
        pcie=pcie,
        nvlink=nvlink,
        network=network,
        host=host,
        engines=engines,
        sources=sources,
    )


def _own_engine(profile: str, engine: str, asking: Path) -> tuple[EngineCosts, Link]:
    """Read the engine that another profile defines itself (no chains of `like`), and its link."""
    top = Fields.of(load_yaml(find_input(profile, "profile")))
    link = _read_link(top.child("pcie"), "pcie", {})
    if top.has("engines"):
        section = top.child("engines")
        if section.has(engine):
            fields = section.child(engine)
            if not fields.has("like"):
                costs = read_engine(engine, fields)
                fields.finish()
                return costs, link
    raise InputError(
        f"profile {printable(profile, 60)!r} defines no such engine itself",
        file=asking,
        field=f"engines.{engine}.like",
        fix="name a profile that does",
    )


def on_link(costs: EngineCosts, factor: float) -> EngineCosts:
    """Return costs whose transports take the same share of a link that is `factor` as fast."""
    if factor == 1:
        return costs
    moved = {
        name: replace(
            transport,
            bytes_per_s=replace(
                transport.bytes_per_s, y=tuple(rate * factor for rate in transport.bytes_per_s.y)
            ),
        )
        for name, transport in costs.transports.items()
    }
    return replace(costs, transports=moved)


def _sourced(
    fields: Fields,
    key: str,
    kind: tuple[Callable[[str], Quantity], tuple[str, str]],
    path: str,
    sources: dict[str, str],
) -> Quantity:
    """Read a number with its source; `kind` is its parser and its bounds."""
    entry = fields.child(key)
    sources[f"{path}.{key}"] = entry.text("source")
    return entry.quantity("value", kind[0], within=kind[1])


def _read_gpu(fields: Fields, sources: dict[str, str]) -> Gpu:
    sms = fields.child("sms")
    sources["gpu.sms"] = sms.text("source")
    return Gpu(
        title=fields.text("title"),
        sms=sms.integer("value", low=1, high=10_000),
        bf16_flops_per_s=_sourced(fields, "bf16_dense", FLOPS, "gpu", sources),
        hbm_bytes=_sourced(fields, "hbm_capacity", HBM, "gpu", sources),
        hbm_bytes_per_s=_sourced(fields, "hbm_bandwidth", BANDWIDTH, "gpu", sources),
    )


def _read_link(fields: Fields, path: str, sources: dict[str, str]) -> Link:
    nominal = _sourced(fields, "bandwidth", BANDWIDTH, path, sources)
    usable = _sourced(fields, "usable_bandwidth", BANDWIDTH, path, sources)
    if usable > nominal:
        fields.mistake("usable_bandwidth", "exceeds the bandwidth", "lower it", None)
    latency = _sourced(fields, "latency", LATENCY, path, sources)
    return Link(nominal, usable, latency)


def _read_host(fields: Fields, sources: dict[str, str]) -> Host:
    return Host(
        kv_bytes=_sourced(fields, "kv_capacity_per_gpu", SIZE, "host", sources),
        dram_bytes_per_s=_sourced(fields, "dram_bandwidth_per_gpu", BANDWIDTH, "host", sources),
    )
