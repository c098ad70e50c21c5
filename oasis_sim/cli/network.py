"""`oasis-sim calibrate --network`: measure real transfers and write a network profile."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from oasis_sim.cli.gpu_options import command_line, emit, same_place
from oasis_sim.cli.terminal import note
from oasis_sim.errors import UsageError
from oasis_sim.text import plain

MEMORIES = ("host", "gpu")


def calibrate_network(values: Mapping[str, Any]) -> None:
    """Measure, or serve a measurement from elsewhere, as the options say.

    Raise UsageError for options that contradict each other; then where NIXL is missing, because
    no other option helps without it.
    """
    if values["gpu"] or values["from_raw"] is not None or values["keep_unstable"]:
        raise UsageError("--network measures no GPU; drop --gpu, --from-raw, --keep-unstable")
    if values["serve"] is not None and (values["out"] or values["raw"] or values["peer"]):
        raise UsageError("--serve answers a peer and writes nothing; drop --out, --raw, --peer")
    if values["out"] and values["raw"] and same_place(values["raw"], values["out"]):
        raise UsageError("--out and --raw name the same file")
    from gpu_exec.network.nixl_side import load_nixl

    load_nixl()
    if values["serve"] is not None:
        _serve(values)
    elif values["out"] is None:
        raise UsageError("name the profile to write with --out FILE")
    else:
        _measure(values)


def _serve(values: Mapping[str, Any]) -> None:
    from gpu_exec.network.channel import place_of
    from gpu_exec.network.serve import ANNOUNCED, serve

    host, port = place_of(values["serve"])

    def announce(bound: int) -> None:
        click.echo(f"{ANNOUNCED}{plain(host)}:{bound}")

    serve((host, port), values["memory"], values["device"], announce)


def _measure(values: Mapping[str, Any]) -> None:
    from gpu_exec.network import judge
    from gpu_exec.network.fit import fit_terms, profile_of
    from gpu_exec.network.measure import GPU_EFFORT, Effort, measure
    from gpu_exec.network.nixl_transport import NixlTransport
    from gpu_exec.network.points import most_bytes_of, points
    from gpu_exec.origin import network_origin
    from gpu_exec.replay import render_json
    from oasis_sim.fileio import check_writable, write_atomic
    from oasis_sim.network.write import network_yaml

    name = values["out"].stem.lower()
    paths = [path for path in (values["out"], values["raw"]) if path is not None]
    for path in paths:
        check_writable(path)
    origin = network_origin(command_line())
    transport = NixlTransport(values["memory"], values["peer"])
    try:
        wanted = points(most_bytes_of(values["memory"]))
        effort = GPU_EFFORT if values["memory"] == "gpu" else Effort()
        tell = partial(note, quiet=values["quiet"])
        readings = measure(transport, wanted, effort, tell)
    finally:
        transport.close()
    if values["raw"] is not None:  # kept whatever the fit makes of it
        raw = judge.readings_json(origin, transport.info, readings)
        write_atomic(values["raw"], render_json(raw))
    terms = fit_terms(readings, values["bandwidth"])
    network = profile_of(name, terms, transport.info, values["bandwidth"], origin["date"])
    judgement = judge.judge(network, readings)
    document = judge.to_json(origin, transport.info, network, readings, judgement)
    header = [plain(f"{key} {value}") for key, value in origin.items()]
    write_atomic(values["out"], network_yaml(network, [*header, transport.info.settings]))
    if values["raw"] is not None:
        write_atomic(values["raw"], render_json(document))
    note(f"written: {', '.join(str(path) for path in paths)}", values["quiet"])
    emit(document, judge.table_lines(document), values["output_format"])
    judge.check(judgement)
