"""The table of a sweep is believed only as far as its hashed runs say the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from oasis_sim.cli.main import main
from oasis_sim.errors import InputError
from oasis_sim.plan.kept import kept_rows
from oasis_sim.trace import save_trace
from tests.strategies import make_trace

GRID = """\
base: {trace: TRACE, budget: 64, context: 200, output_tokens: 20}
vary:
  model: [qwen3-8b, qwen3-235b-a22b]
  scheme: [dense, oasis]
  fetch_ratio: [0.00001, 1]
  concurrency: [1, 2]
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a sweep with points that are done and points that do not fit."""
    place = tmp_path_factory.mktemp("swept")
    save_trace(make_trace(1, block_tokens=16, prompt=300, stored=12), place / "small.npz")
    (place / "grid.yaml").write_text(GRID.replace("TRACE", str(place / "small.npz")))
    command = ["sweep", str(place / "grid.yaml"), "--out", str(place / "s"), "--quiet"]
    assert main([*command, "--workers", "1"]) == 0
    return place / "s"


def test_a_table_is_read_back(swept: Path) -> None:
    """Labels as sweep.yaml spells them; an option that means nothing to a scheme is None."""
    rows = kept_rows(swept)
    assert ["refused", "done"] == [rows[0].status, rows[-1].status]
    assert 12 == len(rows)
    assert {None, "0.00001", "1"} == {row.point["fetch_ratio"] for row in rows}
    for row in rows:
        assert row.outcome is not None
        assert (row.outcome.summary is None) == (row.point["model"] == "qwen3-235b-a22b")


def replace(old: str, new: str) -> Callable[[Path], None]:
    """Return a damage: the first `old` of the table becomes `new`."""

    def damage(place: Path) -> None:
        table = place / "results.csv"
        text = table.read_text(encoding="utf-8")
        assert old in text
        table.write_text(text.replace(old, new, 1), encoding="utf-8")

    return damage


def write(content: bytes) -> Callable[[Path], None]:
    """Return a damage: the table holds something else."""

    def damage(place: Path) -> None:
        (place / "results.csv").write_bytes(content)

    return damage


def without_line(number: int) -> Callable[[Path], None]:
    """Return a damage: a row of the table is taken out."""

    def damage(place: Path) -> None:
        lines = (place / "results.csv").read_text(encoding="utf-8").splitlines(keepends=True)
        del lines[number]
        (place / "results.csv").write_text("".join(lines), encoding="utf-8")

    return damage


def with_a_row_twice(place: Path) -> None:
    """Write the last row of the table once more."""
    table = place / "results.csv"
    text = table.read_text(encoding="utf-8")
    table.write_text(text + text.splitlines(keepends=True)[-1], encoding="utf-8")


def without_file(pattern: str) -> Callable[[Path], None]:
    """Return a damage: the files that match are removed."""

    def damage(place: Path) -> None:
        found = sorted(place.glob(pattern))
        assert found
        for path in found:
            path.unlink()

    return damage


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (write(b"junk,1\n"), ":1: does not begin with the columns model, scheme"),
        (write(b""), ":1: does not begin with the columns"),
        (write(b"\xff\xfe"), "is not UTF-8 text"),
        (replace(",done,", ",refused,"), ":8: is not what its runs say"),
        (replace(",done,", ",fine,"), "'fine' is not what became of run"),
        (replace(",done,,", ",missing,,"), ":8: is not what its runs say"),
        (replace(",done,,", ",done,,nan"), ":8: is not what its runs say"),
        (replace(",oasis,1e-05", ",oasis,3e-05"), "fetch_ratio: '3e-05' is no value of sweep.yaml"),
        (without_line(3), "has no row for model qwen3-235b-a22b, scheme oasis"),
        (without_line(-1), "has no row for model qwen3-8b, scheme oasis"),
        (with_a_row_twice, "has a row twice"),
        (without_file("results.csv"), "has no results.csv"),
        (without_file("runs/*/summary.json"), "has no summary.json"),
        (without_file("runs/*/config.yaml"), "is not what became of run"),
        (without_file("runs/*/manifest.json"), "is not what became of run"),
    ],
)
def test_a_damaged_sweep_is_refused(
    swept: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
    said: str,
) -> None:
    """Each damage ends with code 3, one line, and what to do; no report is written."""
    place = tmp_path / "s"
    shutil.copytree(swept, place)
    damage(place)
    with pytest.raises(InputError) as caught:
        kept_rows(place)
    assert said in str(caught.value)
    assert str(caught.value).endswith("; run the sweep again")
    assert main(["report", str(place), "--out", str(tmp_path / "page.html")]) == 3
    assert 1 == capsys.readouterr().err.count("\n")
    assert not (tmp_path / "page.html").exists()
