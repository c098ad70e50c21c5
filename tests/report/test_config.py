"""config.yaml: what is written can be read back, what is broken is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oasis_sim.engine.spec import LoadSpec, ScenarioSpec
from oasis_sim.errors import InputError, OasisError
from oasis_sim.network import load_network
from oasis_sim.report.config import (
    Config,
    check_fingerprints,
    read_config,
    write_config,
)
from oasis_sim.report.fingerprints import fingerprints
from oasis_sim.scheme import load_scheme
from tests.factories import tiny_scenario, tiny_trace
from tests.strategies import scenario_specs

SCENARIO = tiny_scenario()


@given(spec=scenario_specs())
@settings(max_examples=60, deadline=None)
def test_any_scenario_survives_writing_and_reading(
    spec: ScenarioSpec, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Names, numbers and schemes come back as they were, hostile names included."""
    path = tmp_path_factory.mktemp("config") / "config.yaml"
    text = write_config(spec, SCENARIO)
    path.write_text(text, encoding="utf-8")
    config = read_config(path)
    assert config.spec == spec
    assert config.fingerprints == fingerprints(SCENARIO)
    assert write_config(config.spec, SCENARIO) == text


@given(
    cut=st.integers(0, 2_000),
    junk=st.text(max_size=20),
    keep=st.integers(0, 400),
)
@settings(max_examples=150, deadline=None)
def test_a_damaged_config_is_read_or_refused(
    cut: int, junk: str, keep: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever is cut out or put in, there is a config or one error of ours."""
    path = tmp_path_factory.mktemp("config") / "config.yaml"
    text = write_config(ScenarioSpec(), SCENARIO)
    damaged = text[:cut] + junk + text[cut + keep :]
    path.write_bytes(damaged.encode("utf-8", "surrogatepass"))
    try:
        assert isinstance(read_config(path), Config)
    except OasisError as error:
        assert str(path) in str(error) or "scheme" in str(error)


def test_fingerprints_follow_the_content_not_the_name() -> None:
    """Another engine constant or another trace is another input; a copy is not."""
    same = tiny_scenario(traces=(tiny_trace(),))
    assert fingerprints(same) == fingerprints(SCENARIO)
    profile = replace(SCENARIO.profile, gpu=replace(SCENARIO.profile.gpu, sms=1))
    changed = fingerprints(tiny_scenario(profile=profile))
    different = {key for key, value in fingerprints(SCENARIO).items() if changed[key] != value}
    assert different == {"profile"}
    other = fingerprints(tiny_scenario(traces=(tiny_trace("recorded"),)))
    assert other["trace_1"] != fingerprints(SCENARIO)["trace_1"]


def leaves(part: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every text and number of dataclasses, mappings and tuples, and the path to it."""
    if is_dataclass(part):
        part = {field.name: getattr(part, field.name) for field in fields(part)}
    if isinstance(part, tuple):
        part = {str(place): value for place, value in enumerate(part)}
    if isinstance(part, Mapping):
        for key, value in part.items():
            yield from leaves(value, (*path, key))
    elif part is not None:
        yield path, part


def with_leaf(part: Any, path: tuple[str, ...], value: Any) -> Any:
    """Return the same dataclass, mapping or tuple with another value at a path."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(part, tuple):
        place = int(key)
        return (*part[:place], with_leaf(part[place], rest, value), *part[place + 1 :])
    if isinstance(part, Mapping):
        return {**part, key: with_leaf(part[key], rest, value)}
    return replace(part, **{key: with_leaf(getattr(part, key), rest, value)})


def another(value: str | float) -> str | float:
    """Return another value of the same type, so close that points of a curve stay in order."""
    if isinstance(value, str):
        return f"{value}, in other words"
    if isinstance(value, int):
        return not value if isinstance(value, bool) else value + 1
    return value * 1.0001 + 1e-9 if math.isfinite(value) else 1.0


@pytest.mark.parametrize("kind", ["profile", "network"])
def test_fingerprints_follow_numbers_not_prose(kind: str) -> None:
    """Of a profile every number and its name count; titles, origins and sources do not."""
    network = load_network("roce-400")
    whole = SCENARIO.profile if kind == "profile" else network
    plain = fingerprints(SCENARIO, network)
    found = dict(leaves(whole))
    assert len(found) > 20
    for path, value in found.items():
        changed = with_leaf(whole, path, another(value))
        scenario = replace(SCENARIO, profile=changed) if kind == "profile" else SCENARIO
        now = fingerprints(scenario, changed if kind == "network" else network)
        counts = not isinstance(value, str) or path[-1] == "name"
        assert (now[kind] != plain[kind]) == counts, path
        assert plain == {**now, kind: plain[kind]}


def test_a_replaced_input_is_not_compared() -> None:
    """Fingerprints hold for what still comes from the file."""
    config = Config(ScenarioSpec(), "c.yaml", {**fingerprints(SCENARIO), "trace_1": "0" * 64})
    with pytest.raises(InputError, match=r"fingerprints\.trace_1"):
        check_fingerprints(config, SCENARIO)
    check_fingerprints(config, SCENARIO, except_for={"trace"})


def test_a_scheme_may_be_named_or_written_out(tmp_path: Path) -> None:
    """A hand-written config may say `scheme: dense`."""
    path = tmp_path / "own.yaml"
    path.write_text("format: oasis-config\nversion: 1\nscheme: dense\n")
    assert read_config(path).spec == ScenarioSpec(scheme=load_scheme("dense"))


def test_a_request_file_is_named_in_the_config(tmp_path: Path) -> None:
    """Requests of a file are read again, not copied."""
    load = LoadSpec("file", None, None, None, file="day.jsonl", format="mooncake")
    spec = ScenarioSpec(load=load, concurrency=None)
    path = tmp_path / "config.yaml"
    path.write_text(write_config(spec, SCENARIO))
    assert read_config(path).spec == spec


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("workload: {kind: closed_loop, output_tokens: 1e15}", ":3: workload.output_tokens: 1"),
        ("workload: {kind: closed_loop, context_tokens: 9007199254740992}", "context_tokens: 9"),
        ("workload: {kind: closed_loop, requests: 9e15}", "workload.requests: 9"),
        ("workload: {kind: poisson, rate_per_s: 0}", ":3: workload.rate_per_s: is 0; give"),
        ("concurrency: 1e15", ":3: concurrency: 1"),
        ("max_steps: 1e15", ":3: max_steps: 1"),
        ("tp: 3", ":3: tp: 3 does not divide the 32 query heads of Qwen3-8B; use one of 1, 2, 4"),
        ("engine: fo", ":3: engine: profile h100 has no such engine; use one of freekv"),
    ],
)
def test_values_that_no_run_takes_are_refused_by_line(tmp_path: Path, text: str, said: str) -> None:
    """The bounds are those of the options, and every mistake has its line and code 3."""
    path = tmp_path / "own.yaml"
    path.write_text(f"format: oasis-config\nversion: 1\n{text}\n")
    with pytest.raises(InputError) as caught:
        read_config(path)
    assert said in str(caught.value)
    assert caught.value.exit_code == 3
