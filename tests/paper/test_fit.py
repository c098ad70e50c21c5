"""The calibration tool: constants by path, and one evaluation of each kind."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from oasis_sim.fileio import find_input, load_yaml
from oasis_sim.hardware import load_profile


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """Import benchmarks/fit_h100.py."""
    path = Path(__file__).parents[2] / "benchmarks" / "fit_h100.py"
    spec = importlib.util.spec_from_file_location("fit_h100", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_knob_is_in_the_profile_and_within_its_bounds(tool: ModuleType) -> None:
    """The constants that ship are ones that a fit could have found."""
    constants = tool.read_constants("h100")
    for name, knob in tool.KNOBS.items():
        assert knob.low <= tool.current(constants, knob) <= knob.high, name


@pytest.mark.parametrize("engine", ["vllm", "shadowkv", "infinigen", "freekv"])
def test_the_page_of_calibration_names_every_constant(engine: str) -> None:
    """No constant of a published engine is without its meaning and origin in the documentation."""
    page = (Path(__file__).parents[2] / "docs" / "calibration.md").read_text()
    profile: Any = load_yaml(find_input("h100", "profile")).value
    constants = profile["engines"][engine]
    parts = {name for part in ("launch", "prefill", "transports") for name in constants[part]}
    names = (set(constants) | parts) - {"source"}
    assert [name for name in sorted(names) if name not in page] == []


def test_a_list_is_set_as_a_whole_or_in_part(tool: ModuleType) -> None:
    """`a.b` sets every entry, `a.b[1]` one, `a.b[1:]` the rest."""
    tree = {"a": {"b": [1, 2, 3], "c": 4}}
    tool.assign(tree, "a.b[1]", 9)
    tool.assign(tree, "a.c", 5)
    assert tree == {"a": {"b": [1, 9, 3], "c": 5}}
    tool.assign(tree, "a.b[1:]", 7)
    assert tree["a"]["b"] == [1, 7, 7]
    tool.assign(tree, "a.b", 0)
    assert tree["a"]["b"] == [0, 0, 0]
    with pytest.raises(SystemExit, match=r"no constant 'a\.d'"):
        tool.assign(tree, "a.d", 0)


def test_values_keep_their_unit(tool: ModuleType) -> None:
    """A fitted time is written as a profile file writes it, and read back the same."""
    constants = tool.read_constants("h100")
    changed = tool.with_values(constants, ["step", "attention"], [2.5, 0.25])
    assert changed["launch"]["step"] == "2.5 ms"
    assert tool.current(changed, tool.KNOBS["step"]) == 2.5
    assert set(changed["attention_efficiency"]["share"]) == {0.25}
    profile = tool.engine_profile(load_profile("h100"), changed)
    assert profile.engine("vllm").launch.step_ps == 2_500_000_000


def test_published_volumes_move_the_published_bytes(tool: ModuleType) -> None:
    """At ratio 0.05: 4.84 blocks of 8,192 bytes per head and layer for 128 requests."""
    case = next(case for case in tool.CASES if case.group == "table2" and case.ratio == 0.05)
    found = {item.metric: item for item in tool.evaluate(case, load_profile("h100"), None)}
    assert set(found) == {"step_ms", "output_tokens_per_s", "fetch_gb_per_step"}
    moved = 4.84 * 36 * 8 * 8192 * 128 / 1e9
    assert found["fetch_gb_per_step"].simulated == pytest.approx(moved, rel=1e-2)
    assert found["fetch_gb_per_step"].published == 1.49
