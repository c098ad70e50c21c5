"""Inputs that a config file names and that cannot be loaded: where in the file the name stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from oasis_sim.engine.spec import ScenarioSpec
from oasis_sim.errors import InputError
from oasis_sim.fileio import load_yaml
from oasis_sim.hardware import load_profile
from oasis_sim.model import load_model
from oasis_sim.network import load_network
from oasis_sim.trace import load_trace

Place = tuple[str | int, ...]


def from_config(path: str | Path, spec: ScenarioSpec, error: InputError) -> InputError:
    """Return an error of loading `spec` with the file, line and key that name the input.

    An input that an option named instead, or an error of another kind, comes back as it is.
    """
    document = load_yaml(path)
    for place, name, load in _inputs(spec):
        if _value(document.value, place) == name and _fails_so(load, error):
            field = ".".join(map(str, place))
            line = document.lines.get(place)
            return InputError(str(error), file=document.file, line=line, field=field)
    return error


def _inputs(spec: ScenarioSpec) -> Iterator[tuple[Place, str, Callable[[], object]]]:
    """Yield what a scenario names: place in a config, name, and how it is loaded."""
    yield ("profile",), spec.profile, lambda: load_profile(spec.profile)
    yield ("model",), spec.model, lambda: load_model(spec.model)
    nodes = spec.disaggregation
    if nodes is not None:
        yield ("disaggregation", "network"), nodes.network, lambda: load_network(nodes.network)
    if spec.load.file is not None:
        yield ("workload", "file"), spec.load.file, lambda: spec.load.workload(spec.seed)
    for number, name in enumerate(spec.traces):
        yield ("trace", number), name, lambda name=name: load_trace(name)  # type: ignore[misc]


def _value(value: Any, place: Place) -> Any:
    """Return what stands at a place of a document, None if there is no such place."""
    for key in place:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _fails_so(load: Callable[[], object], error: InputError) -> bool:
    """Say whether an input is what fails with this error."""
    try:
        load()
    except InputError as own:
        return str(own) == str(error)
    return False
