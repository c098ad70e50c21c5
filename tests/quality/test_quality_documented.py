"""Tables of docs/quality.md against the results that they were made from."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from oasis_sim.report.plotfile import save_figure
from tests.drawn_texts import faults

pytest.importorskip("torch", reason="the benchmarks need the extra 'record'")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "quality.md").read_text("utf-8")


@pytest.fixture
def benchmark(monkeypatch):
    """Return a function that imports a benchmark, which imports its neighbours."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


def load(name: str) -> dict:
    """Read a result."""
    return json.loads((ROOT / "validation" / f"{name}.json").read_text("utf-8"))


def test_schemes_of_others_are_as_measured(benchmark):
    """Every row is in the page; enough steps, all of them decoded along the same text."""
    found = load("quality-schemes")
    assert found["steps"] >= 48
    assert 12 == len(found["schemes"])
    for row in benchmark("quality_schemes").table(found):
        assert row in PAGE


def test_keys_in_eight_bits_are_as_measured(benchmark, capsys):
    """Every row of every text and of Gemma 3 is in the page."""
    files = sorted((ROOT / "validation").glob("quality-index-fp8-*.json"))
    assert {"code", "prose", "question", "gemma3"} == {
        each.stem.rsplit("-", 1)[1] for each in files
    }
    for each in files:
        benchmark("quality_index").markdown(load(each.stem))
    rows = capsys.readouterr().out.splitlines()
    assert 16 == len(rows)
    for row in rows:
        assert row in PAGE


def test_texts_of_the_picture_stay_apart(benchmark, tmp_path):
    """No label of docs/quality-smollm2.svg lies over another."""
    pytest.importorskip("matplotlib", reason="pictures need the extra 'plot'")
    report = benchmark("quality_report")
    figure = report.figure_of({text: report.read(text)["study"] for text in report.TEXTS})
    save_figure(figure, tmp_path / "a.svg")
    assert [] == faults(figure)
