"""What the README shows is what the program does."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from oasis_sim.cli.main import cli, main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = re.compile(r"<!-- first run -->\n```text\n(.*?)```\n<!-- end of first run -->", re.DOTALL)


def commands_shown() -> list[str]:
    """Return each `oasis-sim` command line in the README's blocks, without its comment."""
    blocks = re.findall(r"```(?:sh|bash)\n(.*?)```", README, re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("oasis-sim ")]


def parse(arguments: list[str]) -> None:
    """Parse a command line as the program does, without running it."""
    context = cli.make_context("oasis-sim", list(arguments), resilient_parsing=False)
    command: click.Command = cli
    while isinstance(command, click.Group) and context.protected_args + context.args:
        name, found, rest = command.resolve_command(context, context.protected_args + context.args)
        assert found is not None, name
        context = found.make_context(name, rest, parent=context)
        command = found


def test_the_readme_shows_commands() -> None:
    """The search below finds something."""
    assert len(commands_shown()) > 5


@pytest.mark.parametrize("line", commands_shown())
def test_every_command_of_the_readme_is_understood(line: str) -> None:
    """Options of a shown command exist and take the shown values."""
    parse(shlex.split(line, comments=True)[1:])


def test_an_unknown_option_would_be_noticed() -> None:
    """The check above can fail."""
    with pytest.raises(click.UsageError):
        parse(["run", "--nonsense"])


def test_the_shown_table_is_the_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first command prints what the README says; `python docs/make_readme.py` renews it."""
    match = SHOWN.search(README)
    assert match is not None
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--profile", "h100", "--trace", "aime.jsonl", "--quiet"]) == 0
    assert match.group(1) == capsys.readouterr().out


def test_every_file_that_the_readme_links_is_there() -> None:
    """No link of the README leads nowhere."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
