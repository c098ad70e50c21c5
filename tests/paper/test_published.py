"""The file of published numbers: complete, sourced, strictly read."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oasis_sim.errors import InputError
from oasis_sim.fileio import loads_yaml
from oasis_sim.paper.published import KINDS, Published, load_published, read_published
from tests.strategies import json_values

# Numbers of each table or figure that the paper gives.
COUNTS = {
    "table2": 9 * 6 + 3,
    "fig2": 16,
    "fig4": 6,
    "fig6": 36,
    # OasisKV 36, dense 32 (its batch is not shown at 8 and 16), ShadowKV 9, InfiniGen 15,
    # FreeKV 6, and the four arrows.
    "fig11": 36 + 32 + 9 + 15 + 6 + 4,
    # Four rates, and host memory per request.
    "fig12": 7 * 4 + 2,
    "fig14": 3,
    # Three gains, and the prefill time behind them.
    "fig15": 3 + 1,
}

METRIC = "retrieval_share_pct"

GOOD = """
schema_version: 1
paper: a paper
series:
  - table: fig2
    where: {attended_tokens: 1024}
    over: batch
    points: [8, 16]
    metric: retrieval_share_pct
    unit: percent
    values: [14, 24]
    kind: quoted
    source: figure 2
"""


@pytest.fixture(scope="module")
def published() -> Published:
    """Read the shipped file once."""
    return load_published()


def test_every_table_has_all_its_numbers(published: Published) -> None:
    """The number of values per table is that of the paper."""
    assert COUNTS == Counter(point.table for point in published.values)


def test_every_number_has_unit_kind_and_source(published: Published) -> None:
    """No value comes from nowhere."""
    for value in published.values.values():
        assert value.unit
        assert value.source
        assert value.kind in KINDS


@pytest.mark.parametrize(
    ("table", "keys", "metric", "expected"),
    [
        ("table2", {"fetch_ratio": 0.05}, "step_ms", 62.6),
        ("table2", {"fetch_ratio": 1.0}, "output_tokens_per_s", 824),
        ("table2", {"system": "dense"}, "output_tokens_per_s", 1235),
        ("fig2", {"attended_tokens": 4096, "batch": 64}, "retrieval_share_pct", 73),
        ("fig6", {"layer": 35}, "agreement_pct", 99.1),
    ],
)
def test_spot_values(
    published: Published, table: str, keys: dict[str, Any], metric: str, expected: float
) -> None:
    """A few numbers stand where they belong."""
    assert expected == published.value(table, keys, metric)


def test_points_of_figure_11(published: Published) -> None:
    """A point that the paper shows has its value, a point that ran out of memory has none."""
    keys = {"model": "8b", "context_tokens": 16384, "system": "shadowkv", "concurrency": 32}
    assert published.value("fig11", keys, "tpot_ms") == 52.2
    assert published.value("fig11", {**keys, "concurrency": 64}, "tpot_ms") is None


def numbers_of(value: Any) -> list[float]:
    """Return every number in nested mappings and lists."""
    if isinstance(value, dict):
        return [number for item in value.values() for number in numbers_of(item)]
    if isinstance(value, list):
        return [number for item in value for number in numbers_of(item)]
    return [float(value)] if isinstance(value, int | float) else []


def test_agrees_with_the_calibration_sheet(published: Published) -> None:
    """Every number of the separate calibration sheet is there (key columns apart)."""
    folder = os.environ.get("OASIS_SHARED_DIR")
    if folder is None:
        pytest.skip("OASIS_SHARED_DIR is not set: no calibration sheet to compare with")
    sheet = json.loads((Path(folder) / "paper_calibration.json").read_text(encoding="utf-8"))
    del sheet["table2_Q"]["K"]
    for row in sheet["table2_Q"]["rows"]:
        del row["ratio"]
    del sheet["fig2_Q_percent"]["tokens"], sheet["fig2_Q_percent"]["batch"]
    del sheet["fig11_D"]["max_concurrency"], sheet["fig12_D"]["24K"]["rate"]
    ours = Counter(value.value for value in published.values.values())
    # Stated beside the figures: host memory per request, and prefill at 24K.
    assert Counter(numbers_of(sheet)) + Counter([3.38, 1.54, 1.76]) == ours


def test_reads_a_series() -> None:
    """One series gives one value per point."""
    found = read_published(loads_yaml(GOOD, "own.yaml"))
    assert found.value("fig2", {"attended_tokens": 1024.0, "batch": 16}, METRIC) == 24
    assert found.value("fig2", {"attended_tokens": 1024, "batch": 32}, METRIC) is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kind: quoted", "kind: guessed", "kind"),
        ("values: [14, 24]", "values: [14]", "values"),
        ("values: [14, 24]", "values: [14, .nan]", "values"),
        ("points: [8, 16]", "points: [8, 8]", "given before"),
        ("over: batch", "over: attended_tokens", "fixed by where"),
        ("where: {attended_tokens: 1024}", "where: {colour: 1}", "colour"),
        ("    unit: percent\n", "", "unit"),
        ("schema_version: 1", "schema_version: 2", "schema_version"),
    ],
)
def test_refuses_mistakes(old: str, new: str, message: str) -> None:
    """A mistake is named with its file."""
    assert old in GOOD
    with pytest.raises(InputError, match=f"own.yaml.*{message}"):
        read_published(loads_yaml(GOOD.replace(old, new), "own.yaml"))


@given(value=json_values(), place=st.sampled_from(["series", "where", "points", "values"]))
def test_any_value_is_read_or_refused(value: Any, place: str) -> None:
    """Whatever stands in the file, the reader answers or raises InputError."""
    document = loads_yaml(GOOD, "own.yaml")
    target = document.value if place == "series" else document.value["series"][0]
    target[place] = value
    try:
        read_published(document)
    except InputError as error:
        assert "own.yaml" in str(error)
