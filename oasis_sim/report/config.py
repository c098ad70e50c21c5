"""`config.yaml`: a scenario written out in full, to be run again with the same bytes.

It names the profile, the model and the traces as they were given, with a fingerprint of what was
read, so that a run of the same file is refused when an input has changed meanwhile. The scheme
stands there with all its parts.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oasis_sim.engine.scenario import Scenario
from oasis_sim.engine.spec import (
    CLOSED_LOOP,
    DEFAULT_CONCURRENCY,
    DEFAULT_NETWORK,
    FILE,
    LOAD_KINDS,
    POISSON,
    DisaggregationSpec,
    LoadSpec,
    ScenarioSpec,
)
from oasis_sim.errors import InputError
from oasis_sim.fileio import (
    LARGEST_EXACT,
    Document,
    Fields,
    did_you_mean,
    dump_yaml,
    load_yaml,
    printable,
)
from oasis_sim.hardware import load_profile
from oasis_sim.model import load_model
from oasis_sim.network import NetworkProfile
from oasis_sim.report.fingerprints import fingerprints
from oasis_sim.scheme import Scheme, load_scheme
from oasis_sim.scheme.load import read_scheme
from oasis_sim.workload.workload import LARGEST_REQUESTS, LARGEST_TOKENS

FORMAT = "oasis-config"
VERSION = 1
MOST_NODES = 4_096
HEADER = """\
# A scenario in full. Run it again: oasis-sim run --config FILE
# (fingerprints: of the inputs as they were read; remove a line to accept a changed input)
"""


@dataclass(frozen=True)
class Config:
    """Hold a scenario by name and the fingerprints that its inputs had."""

    spec: ScenarioSpec
    file: str = ""
    fingerprints: Mapping[str, str] = field(default_factory=dict)


def write_config(
    spec: ScenarioSpec, scenario: Scenario, network: NetworkProfile | None = None
) -> str:
    """Return the YAML text of a scenario; the same scenario gives the same text.

    `network` is what lies between its nodes, None on one node.
    """
    load = spec.load
    loads: dict[str, Any] = {"kind": load.kind, "requests": load.requests}
    if load.kind == FILE:
        loads |= {"file": load.file, "format": load.format}
        loads |= {"every": load.every} if load.every != 1 else {}
    else:
        loads |= {"context_tokens": load.context_tokens, "output_tokens": load.output_tokens}
    if load.rate_per_s is not None:
        loads["rate_per_s"] = load.rate_per_s
    document = {
        "format": FORMAT,
        "version": VERSION,
        "profile": spec.profile,
        "engine": spec.engine,
        "model": spec.model,
        "trace": list(spec.traces),
        "drafter": spec.drafter,
        "workload": loads,
        "concurrency": spec.concurrency,
        "tp": spec.tp,
        "host_bytes": spec.host_bytes,
        "hbm_bytes": spec.hbm_bytes,
        "host_link": spec.host_link,
        "seed": spec.seed,
        "max_steps": spec.max_steps,
        "scheme": spec.scheme.to_config(),
        **_nodes(spec),
        "fingerprints": fingerprints(scenario, network),
    }
    return HEADER + dump_yaml(document)


def _nodes(spec: ScenarioSpec) -> dict[str, Any]:
    """Return the section of a disaggregated run, if it is one."""
    nodes = spec.disaggregation
    if nodes is None:
        return {}
    parts = dataclasses.asdict(nodes)
    more = {"at_once": parts.pop("at_once"), "faults": list(parts.pop("faults"))}
    return {"disaggregation": parts | {name: value for name, value in more.items() if value}}


def _read_nodes(fields: Fields) -> DisaggregationSpec | None:
    if not fields.has("disaggregation"):
        return None
    child = fields.child("disaggregation")
    return DisaggregationSpec(
        prefill=child.integer("prefill", low=1, high=MOST_NODES),
        decode=child.integer("decode", low=1, high=MOST_NODES),
        network=child.text("network", DEFAULT_NETWORK),
        transfer=child.text("transfer", choices=("full", "partial")),
        prefix_hits=child.number("prefix_hits", 0.0, high=1.0),
        remote_bytes=_optional(child, "remote_bytes", low=0),
        at_once=_optional(child, "at_once", low=1),
        faults=child.texts("faults") if child.has("faults") else (),
    )


def read_config(path: str | Path) -> Config:
    """Read a config file; raise InputError with every mistake and its line."""
    document = load_yaml(path)
    fields = Fields.of(document)
    fields.text("format", choices=(FORMAT,))
    fields.integer("version", low=VERSION, high=VERSION)
    defaults = ScenarioSpec(scheme=Scheme("unread"))
    load = _read_load(fields)
    spec = ScenarioSpec(
        profile=fields.text("profile", defaults.profile),
        engine=fields.text("engine", defaults.engine),
        model=fields.text("model", defaults.model),
        scheme=_read_scheme(fields, document),
        traces=fields.texts("trace") if fields.has("trace") else defaults.traces,
        drafter=fields.text("drafter") if fields.has("drafter") else None,
        load=load,
        concurrency=_read_concurrency(fields, document, load),
        tp=fields.integer("tp", defaults.tp, low=1, high=1024),
        host_bytes=_optional(fields, "host_bytes", low=0),
        hbm_bytes=_optional(fields, "hbm_bytes", low=1),
        host_link=fields.text("host_link") if fields.has("host_link") else None,
        seed=fields.integer("seed", defaults.seed, high=2**32 - 1),
        max_steps=_optional(fields, "max_steps", low=1, high=LARGEST_TOKENS),
        disaggregation=_read_nodes(fields),
    )
    _check_together(fields, spec)
    recorded: dict[str, str] = {}
    if fields.has("fingerprints"):
        child = fields.child("fingerprints")
        recorded = {name: child.text(name) for name in child.keys()}  # noqa: SIM118 - no mapping
    fields.finish()
    return Config(spec, document.file, recorded)


def _optional(fields: Fields, key: str, *, low: int, high: int = LARGEST_EXACT) -> int | None:
    return fields.integer(key, low=low, high=high) if fields.has(key) else None


def _check_together(fields: Fields, spec: ScenarioSpec) -> None:
    """Note an engine that the profile does not have, and a tp that does not divide the model.

    Inputs that cannot be loaded are left to the run: options may replace them.
    """
    with contextlib.suppress(InputError):
        engines = load_profile(spec.profile).engines
        if spec.engine not in engines:
            fix = f"use one of {', '.join(sorted(engines))}{did_you_mean(spec.engine, [*engines])}"
            fields.mistake(
                "engine", f"profile {printable(spec.profile, 60)} has no such engine", fix, None
            )
    with contextlib.suppress(InputError):
        model = load_model(spec.model)
        if problem := model.tp_problem(spec.tp):
            good = [str(tp) for tp in range(1, 65) if not model.tp_problem(tp)]
            fields.mistake("tp", problem, f"use one of {', '.join(good)}", None)


def _read_concurrency(fields: Fields, document: Document, load: LoadSpec) -> int | None:
    """Read the limit: null means none; left out, it is the default of the kind of load."""
    found = _optional(fields, "concurrency", low=1, high=LARGEST_REQUESTS)
    if found is None and "concurrency" not in document.value and load.kind == CLOSED_LOOP:
        return DEFAULT_CONCURRENCY
    return found


def _read_scheme(fields: Fields, document: Document) -> Scheme:
    """Read the scheme: a name, or a mapping with its parts."""
    if not fields.has("scheme"):
        return load_scheme("oasis")
    value = document.value["scheme"]
    if isinstance(value, str):
        try:
            return load_scheme(value)
        except InputError as error:
            return fields.mistake("scheme", str(error), None, Scheme("unread"))
    lines = {
        path[1:]: line for path, line in document.lines.items() if path and path[0] == "scheme"
    }
    return read_scheme(Document(value, document.file, lines))


def _read_load(fields: Fields) -> LoadSpec:
    if not fields.has("workload"):
        return LoadSpec()
    child = fields.child("workload")
    kind = child.text("kind", choices=LOAD_KINDS)
    requests = _optional(child, "requests", low=1, high=LARGEST_REQUESTS)
    if kind == FILE:
        return LoadSpec(
            kind,
            requests,
            None,
            None,
            file=child.text("file"),
            format=child.text("format"),
            every=child.integer("every", 1, low=1, high=LARGEST_REQUESTS),
        )
    return LoadSpec(
        kind,
        requests if requests is not None else LoadSpec.requests,
        child.integer("context_tokens", LoadSpec.context_tokens, low=1, high=LARGEST_TOKENS),
        child.integer("output_tokens", LoadSpec.output_tokens, low=1, high=LARGEST_TOKENS),
        _read_rate(child) if kind == POISSON else None,
    )


def _read_rate(fields: Fields) -> float:
    rate = fields.number("rate_per_s")
    if rate == 0 and fields.clean:
        fields.mistake("rate_per_s", "is 0", "give a positive number of requests per second", None)
    return rate


def check_fingerprints(
    config: Config,
    scenario: Scenario,
    network: NetworkProfile | None = None,
    *,
    except_for: Collection[str] = (),
) -> None:
    """Raise InputError when an input is not the one that the config was written with.

    `except_for` names kinds of input (profile, model, workload, network, trace) that were replaced.
    """
    now = fingerprints(scenario, network)
    for name, recorded in config.fingerprints.items():
        if name.partition("_")[0] in except_for:
            continue
        if name in now and now[name] != recorded:
            raise InputError(
                "this input has changed since the file was written",
                file=config.file,
                field=f"fingerprints.{name}",
                fix="restore it, or remove this line to accept the change",
            )
