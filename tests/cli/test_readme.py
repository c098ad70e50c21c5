"""What the README shows is what the program does."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click
import pytest

from oasis_sim.cli.main import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = re.compile(r"<!-- first run -->\n```text\n(.*?)```\n<!-- end of first run -->", re.DOTALL)


def commands_shown() -> list[str]:
    """Return each `oasis-sim` command line in the README's blocks, without its comment."""
    blocks = re.findall(r"```(?:sh|bash)\n(.*?)```", README, re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("oasis-sim ")]


@pytest.fixture
def parse_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands be parsed but do nothing."""
    monkeypatch.setattr(click.Command, "invoke", lambda self, context: None)


def test_the_readme_shows_commands() -> None:
    """The search below finds something."""
    assert len(commands_shown()) > 5


@pytest.mark.parametrize("line", commands_shown())
@pytest.mark.usefixtures("parse_only")
def test_every_command_of_the_readme_is_understood(line: str) -> None:
    """Options of a shown command exist and take the shown values."""
    assert main(shlex.split(line, comments=True)[1:]) == 0


@pytest.mark.usefixtures("parse_only")
def test_an_unknown_option_would_be_noticed() -> None:
    """The check above can fail."""
    assert main(["run", "--nonsense"]) == 2


def test_the_shown_table_is_the_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first command prints what the README says; `python docs/make_readme.py` renews it."""
    match = SHOWN.search(README)
    assert match is not None
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--profile", "h100", "--trace", "aime.jsonl", "--quiet"]) == 0
    assert match.group(1) == capsys.readouterr().out


@pytest.mark.parametrize(("name", "title"), [("fig2", "Figure 2"), ("table2", "Table 2")])
def test_the_stated_errors_are_the_programs(
    name: str, title: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The accuracy in the README is computed; `python docs/make_readme.py` renews it."""
    assert main(["paper", name, "--format", "json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    line = next(line for line in README.splitlines() if line.startswith(f"| {title}"))
    assert line.split("|")[3].strip() == f"{found['mape_pct']:.1f} %"


def test_the_validation_table_is_the_committed_file() -> None:
    """Each measured step time of validation/h200.json stands in the README with its error."""
    document = json.loads((ROOT / "validation" / "h200.json").read_text(encoding="utf-8"))
    rows = [row for row in document["rows"] if row["metric"] == "step_time"]
    shown = [line for line in README.splitlines() if line.startswith("| ") and "%" in line]
    assert len(rows) == document["summary"]["configs"] >= 16
    for row in rows:
        times = f"| {row['simulated']:.2f} | {row['measured']:.2f} |"
        assert any(times in line and f"{row['error_pct']:+.1f} %" in line for line in shown)
