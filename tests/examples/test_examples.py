"""The worked questions: their commands give the committed reports, byte for byte."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def module(name: str) -> ModuleType:
    """Import a script of the examples."""
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found  # dataclasses look their module up
    spec.loader.exec_module(found)
    return found


FOLDERS = sorted(path.parent.name for path in EXAMPLES.glob("*/README.md"))


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the content of every file of an example."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_there_are_three() -> None:
    """The questions that the index names."""
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert 3 == len(FOLDERS)
    assert all(f"]({name}/README.md)" in index for name in FOLDERS)


@pytest.mark.parametrize("name", FOLDERS)
def test_the_commands_give_the_committed_reports(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the README's commands write is what is committed; so is the answer it quotes.

    After a change of simulated numbers: `python examples/regenerate.py`.
    """
    committed = files_of(EXAMPLES / name)
    folder = tmp_path / name
    shutil.copytree(EXAMPLES / name, folder)
    for report in ("report.html", "report.md"):
        (folder / report).unlink()
    module("regenerate").regenerate(folder)
    made = files_of(folder)
    assert sorted(committed) == sorted(made)
    differing = [each for each in committed if committed[each] != made[each]]
    assert [] == differing, "run: python examples/regenerate.py"
    assert len(made["report.html"]) < 1_000_000


def test_the_request_files_are_what_the_script_makes() -> None:
    """Synthetic inputs follow from their parameters."""
    make = module("make_workloads")
    for name, load in make.LOADS.items():
        lines = [",".join(row) for row in make.rows(load)]
        committed = (EXAMPLES / name / "workload.csv").read_text(encoding="utf-8")
        assert committed == "\n".join(lines) + "\n"
