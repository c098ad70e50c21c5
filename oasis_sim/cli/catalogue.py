"""`oasis-sim profiles`, `networks`, `models`, `schemes`: what is built in, one of them in full."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from oasis_sim.cli.once import OnceGroup
from oasis_sim.cli.options import format_option
from oasis_sim.units import KIB, MIB, format_bandwidth, format_bytes, format_flops, format_time

if TYPE_CHECKING:
    from oasis_sim.scheme import Scheme
    from oasis_sim.scheme.explain import Explanation

Entry = Mapping[str, Any]

LISTED_SIZES = (4 * KIB, 64 * KIB, 256 * KIB)
"""Descriptors for which the list of networks gives the rate of one transfer,"""
LISTED_BYTES = 256 * MIB
"""and the size of that transfer."""


@click.group(cls=OnceGroup, invoke_without_command=True)
@format_option
@click.pass_context
def profiles(context: click.Context, output_format: str) -> None:
    """List the hardware profiles, or `show NAME` one with the source of each number."""
    from oasis_sim.fileio import shipped_inputs

    if context.invoked_subcommand is None:
        print_entries([profile_entry(name) for name in shipped_inputs("profile")], output_format)


@profiles.command("show")
@click.argument("name")
@format_option
def show_profile(name: str, output_format: str) -> None:
    """Show a profile, built in or a file."""
    from oasis_sim.hardware import load_profile

    print_entry(plain_value(load_profile(name)), output_format)


@click.group(cls=OnceGroup, invoke_without_command=True)
@format_option
@click.pass_context
def networks(context: click.Context, output_format: str) -> None:
    """List the network profiles, or `show NAME` one with the source of each number."""
    from oasis_sim.fileio import shipped_inputs

    if context.invoked_subcommand is None:
        print_entries([network_entry(name) for name in shipped_inputs("network")], output_format)


@networks.command("show")
@click.argument("name")
@format_option
def show_network(name: str, output_format: str) -> None:
    """Show a network profile, built in or a file."""
    from oasis_sim.network import load_network

    print_entry(plain_value(load_network(name)), output_format)


@click.group(cls=OnceGroup, invoke_without_command=True)
@format_option
@click.pass_context
def models(context: click.Context, output_format: str) -> None:
    """List the models, or `show NAME` one with what follows from its shape."""
    from oasis_sim.model import model_names

    if context.invoked_subcommand is None:
        print_entries([model_entry(name) for name in model_names()], output_format)


@models.command("show")
@click.argument("name")
@format_option
def show_model(name: str, output_format: str) -> None:
    """Show a model, built in or a config.json."""
    from oasis_sim.model import load_model

    shape = load_model(name)
    derived = {
        "params": shape.params,
        "active_params": shape.active_params,
        "weight_bytes": shape.weight_bytes,
        "kv_bytes_per_token": shape.kv_bytes_per_token,
        "block_head_bytes": shape.block_head_bytes(16),
    }
    print_entry({**plain_value(shape), **derived}, output_format)


@click.group(cls=OnceGroup, invoke_without_command=True)
@format_option
@click.pass_context
def schemes(context: click.Context, output_format: str) -> None:
    """List the KV cache schemes, or `show NAME` one with all its parts."""
    from oasis_sim.scheme import scheme_names

    if context.invoked_subcommand is None:
        print_entries([scheme_entry(name) for name in scheme_names()], output_format)


@schemes.command("show")
@click.argument("name")
@format_option
def show_scheme(name: str, output_format: str) -> None:
    """Show a scheme, built in or a file.

    It says what is resident, what moves when, and what waits.
    """
    from oasis_sim.scheme import load_scheme
    from oasis_sim.scheme.explain import explain

    scheme = load_scheme(name)
    explanation = explain(scheme)
    derived = {
        "chosen_blocks": scheme.chosen_blocks,
        "pool_blocks": scheme.pool_blocks,
        "admission_cap": scheme.admission_cap,
        "attended_tokens_max": scheme.attended_tokens_max,
    }
    entry = {**plain_value(scheme), **derived}
    if output_format == "json":
        entry["explanation"] = plain_value(explanation)
    elif output_format == "table":
        print_explanation(scheme, explanation)
        print_scheme_file(scheme, derived)
        return
    print_entry(entry, output_format)


def print_scheme_file(scheme: Scheme, derived: Mapping[str, int]) -> None:
    """Print a scheme as a scheme file holds it, and what follows from its parts as comments."""
    from oasis_sim.fileio import dump_yaml

    lines = [f"# {name}: {value:,}\n" for name, value in derived.items()]
    sys.stdout.write("".join(["as a scheme file\n\n", dump_yaml(scheme.to_config()), *lines]))


def print_explanation(scheme: Scheme, explanation: Explanation) -> None:
    """Print a scheme in words, then its pipeline."""
    from oasis_sim.text import one_line

    lines = [one_line(scheme.title or scheme.name), one_line(scheme.description), ""]
    sections = {
        "in HBM, per request": explanation.resident,
        "moves": explanation.moves,
        "waits": explanation.waits,
    }
    for title, texts in sections.items():
        lines += [title, *(f"  - {text}" for text in texts), ""]
    lines += ["time runs to the right; dots are time in which compute waits", ""]
    lines += [*(f"  {line}" for line in explanation.picture), "", ""]
    sys.stdout.write("\n".join(lines))


def profile_entry(name: str) -> Entry:
    """Return the line of a profile in the list."""
    from oasis_sim.hardware import load_profile

    profile = load_profile(name)
    return {
        "name": name,
        "gpu": profile.gpu.title,
        "bf16": format_flops(profile.gpu.bf16_flops_per_s),
        "hbm": format_bytes(profile.gpu.hbm_bytes, binary=True),
        "hbm_bandwidth": format_bandwidth(profile.gpu.hbm_bytes_per_s),
        "pcie": format_bandwidth(profile.pcie.bytes_per_s),
        "host_kv": format_bytes(profile.host.kv_bytes, binary=True),
        "engines": ", ".join(sorted(profile.engines)),
    }


def network_entry(name: str) -> Entry:
    """Return the line of a network profile in the list."""
    from oasis_sim.network import Transfer, load_network

    network = load_network(name)
    rates = {
        f"{size // KIB} KiB": network.bytes_per_s(Transfer.of(LISTED_BYTES // size, size))
        for size in LISTED_SIZES
    }
    return {
        "name": name,
        "title": network.title,
        "origin": network.origin,
        "bandwidth": format_bandwidth(network.node_bytes_per_s),
        **{size: format_bandwidth(rate) for size, rate in rates.items()},
        "latency": format_time(network.latency_ps),
        "remote": format_bytes(network.remote_bytes, binary=True),
    }


def model_entry(name: str) -> Entry:
    """Return the line of a model in the list."""
    from oasis_sim.model import load_model

    shape = load_model(name)
    return {
        "name": name,
        "params": f"{shape.params / 1e9:.3g} B",
        "weights": format_bytes(shape.weight_bytes, binary=True),
        "layers": shape.layers,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "kv_per_token": f"{shape.kv_bytes_per_token:,} B",
        "max_context": shape.max_context,
    }


def scheme_entry(name: str) -> Entry:
    """Return the line of a scheme in the list."""
    from oasis_sim.scheme import load_scheme

    scheme = load_scheme(name)
    return {"name": name, "title": scheme.title, "description": scheme.description}


def plain_value(value: Any) -> Any:
    """Return a frozen input as nested plain values, curves as their points."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            item.name: plain_value(getattr(value, item.name)) for item in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        # Ideal engines hold neighbours up altogether; JSON has no infinity.
        return "infinite"
    return value


def print_entries(entries: Sequence[Entry], output_format: str) -> None:
    """Print a list of like entries."""
    header = list(entries[0]) if entries else []
    _print(
        output_format,
        as_json=lambda: list(entries),
        as_rows=lambda: [header, *([entry[key] for key in header] for entry in entries)],
    )


def print_entry(entry: Entry, output_format: str) -> None:
    """Print one entry in full."""
    from oasis_sim.report.csvfile import flatten

    _print(
        output_format,
        as_json=lambda: dict(entry),
        as_rows=lambda: [("part", "value"), *flatten(joined_lists(entry))],
    )


def joined_lists(value: Any) -> Any:
    """Return nested values with each list of numbers or texts as one text."""
    if isinstance(value, Mapping):
        return {key: joined_lists(item) for key, item in value.items()}
    if isinstance(value, list):
        return ", ".join(f"{item:g}" if isinstance(item, float) else str(item) for item in value)
    return value


def _print(
    output_format: str, as_json: Callable[[], Any], as_rows: Callable[[], Sequence[Sequence[Any]]]
) -> None:
    if output_format == "json":
        from oasis_sim.report.directory import json_text

        sys.stdout.write(json_text(as_json()))
    elif output_format == "csv":
        from oasis_sim.report.csvfile import write_rows

        sys.stdout.write(write_rows(as_rows()))
    else:
        from oasis_sim.report.table import print_rows

        print_rows(as_rows(), sys.stdout)
