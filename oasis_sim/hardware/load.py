"""Read a hardware profile from YAML: every number with its unit in words and its source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from oasis_sim.errors import InputError
from oasis_sim.fileio import Document, Fields, SourcedFields, find_input, load_yaml, printable
from oasis_sim.hardware import bounds
from oasis_sim.hardware.load_engine import read_engine
from oasis_sim.hardware.profile import EngineCosts, Gpu, HardwareProfile, Host, Link
from oasis_sim.hardware.roofline import roofline_costs
from oasis_sim.units import (
    format_bandwidth,
    parse_bandwidth,
    parse_bytes,
    parse_flops,
    parse_power,
    parse_time,
)

ORIGINS = ("datasheet", "published", "measured")


def load_profile(name: str) -> HardwareProfile:
    """Return the hardware profile of a shipped name or a YAML file.

    Raises InputError that lists every mistake with its line.
    """
    path = find_input(name, "profile")
    return read_profile(path)


def read_profile(path: Path) -> HardwareProfile:
    """Read one profile file; see docs/hardware-profiles.md for its keys."""
    return profile_of(load_yaml(path), path)


def profile_of(document: Document, path: Path) -> HardwareProfile:
    """Return the profile that a document holds; `path` names it in messages."""
    top = Fields.of(document)
    top.integer("schema_version", low=1, high=1)
    limits = SourcedFields(top)
    gpu = _read_gpu(limits.child("gpu"))
    pcie = _read_link(limits.child("pcie"))
    nvlink = _read_link(limits.child("nvlink")) if top.written("nvlink") else None
    if top.written("network"):
        fix = "remove it and name a network where one is used (--network)"
        top.mistake("network", "is no part of a hardware profile", fix, None)
    host = _read_host(limits.child("host"))
    name = top.text("name")
    origin = top.text("origin", choices=ORIGINS)
    engines: dict[str, EngineCosts] = {"roofline": roofline_costs(pcie)}
    likes: dict[str, tuple[str, str]] = {}
    if top.written("engines"):
        section = top.child("engines")
        names = section.keys()
        for engine in names:
            fields = section.child(engine)
            if fields.written("like"):
                likes[engine] = (fields.text("like"), fields.text("source"))
            elif engine == "roofline":
                section.mistake(engine, "is derived from the limits", "remove it", None)
            else:
                engines[engine] = read_engine(engine, fields)
                _check_rates(fields, engines[engine], pcie)
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
        host=host,
        engines=engines,
        sources=limits.sources,
    )


def _check_rates(fields: Fields, costs: EngineCosts, link: Link) -> None:
    """Note every transport that is said to move more than the link can: runs would beat bounds."""
    most = link.bytes_per_s
    for name, transport in costs.transports.items():
        rates = transport.bytes_per_s
        if any(
            y * transport.idle_speedup.at(x) > most for x, y in zip(rates.x, rates.y, strict=True)
        ):
            problem = f"with idle_speedup, exceeds the link's bandwidth ({format_bandwidth(most)})"
            fields.mistake(("transports", name, "rate"), problem, "lower one of them", None)


def _own_engine(profile: str, engine: str, asking: Path) -> tuple[EngineCosts, Link]:
    """Read the engine that another profile defines itself (no chains of `like`), and its link."""
    top = Fields.of(load_yaml(find_input(profile, "profile")))
    link = _read_link(SourcedFields(top).child("pcie"))
    if top.written("engines"):
        section = top.child("engines")
        if section.has(engine):
            fields = section.child(engine)
            if not fields.written("like"):
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


def _read_gpu(section: SourcedFields) -> Gpu:
    return Gpu(
        title=section.fields.text("title"),
        sms=section.integer("sms", 1, 10_000),
        bf16_flops_per_s=section.quantity("bf16_dense", parse_flops, bounds.FLOPS),
        hbm_bytes=section.quantity("hbm_capacity", parse_bytes, bounds.HBM),
        hbm_bytes_per_s=section.quantity("hbm_bandwidth", parse_bandwidth, bounds.BANDWIDTH),
        power_w=section.quantity("power", parse_power, bounds.POWER)
        if section.fields.written("power")
        else None,
    )


def _read_link(section: SourcedFields) -> Link:
    nominal = section.quantity("bandwidth", parse_bandwidth, bounds.BANDWIDTH)
    usable = section.quantity("usable_bandwidth", parse_bandwidth, bounds.BANDWIDTH)
    if usable > nominal:
        section.fields.mistake("usable_bandwidth", "exceeds the bandwidth", "lower it", None)
    latency = section.quantity("latency", parse_time, bounds.LATENCY)
    return Link(nominal, usable, latency)


def _read_host(section: SourcedFields) -> Host:
    return Host(
        kv_bytes=section.quantity("kv_capacity_per_gpu", parse_bytes, bounds.SIZE),
        dram_bytes_per_s=section.quantity(
            "dram_bandwidth_per_gpu", parse_bandwidth, bounds.BANDWIDTH
        ),
    )
