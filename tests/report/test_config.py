"""config.yaml: what is written can be read back, what is broken is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oasis_sim.engine.spec import LoadSpec, ScenarioSpec
from oasis_sim.errors import InputError, OasisError
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
