"""The frame of the command line: help, errors in one line, exit codes."""

from __future__ import annotations

import importlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from oasis_sim import __version__
from oasis_sim.cli.main import COMMANDS, cli, main, report_failure
from oasis_sim.cli.once import OnceCommand, OnceGroup
from oasis_sim.errors import (
    GpuUnavailable,
    InputError,
    OasisError,
    RunFailed,
    TargetMissed,
    UsageError,
)

HEAVY = ("numpy", "numba", "torch", "pandas", "matplotlib", "scipy", "rich", "yaml")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_can_be_loaded(name: str) -> None:
    """A name in the table leads to a click command."""
    module, attribute = COMMANDS[name][0].split(":")
    assert isinstance(getattr(importlib.import_module(module), attribute), click.Command)


def every_option() -> Iterator[tuple[list[str], click.Option]]:
    """Yield every option of every command, and the words that lead to the command."""
    for name in COMMANDS:
        found = cli.get_command(click.Context(cli), name)
        commands: dict[tuple[str, ...], click.Command | None] = {(name,): found}
        if isinstance(found, click.Group):
            commands |= {(name, each): found.commands[each] for each in found.commands}
        for words, command in commands.items():
            assert isinstance(command, OnceCommand | OnceGroup), words
            for option in command.params:
                if isinstance(option, click.Option):
                    yield list(words), option


def test_no_option_drops_a_value_in_silence(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever takes one value is refused when it is given twice, in every command."""
    checked = 0
    for words, option in every_option():
        if option.multiple or (option.is_flag and not option.secondary_opts):
            continue
        once = [option.opts[-1], *([] if option.is_flag else ["1"])]
        assert main([*words, *once, *once]) == 2
        assert "is given twice" in capsys.readouterr().err, (words, option.name)
        checked += 1
    assert checked > 100


def test_an_option_and_its_opposite_contradict(capsys: pytest.CaptureFixture[str]) -> None:
    """`--parquet --no-parquet` asks both; `--quiet --quiet` asks the same twice."""
    assert main(["sweep", "--parquet", "--no-parquet"]) == 2
    assert "--parquet / --no-parquet is given twice" in capsys.readouterr().err
    assert main(["schemes", "show", "oasis", "--format", "json", "--format", "json"]) == 2
    assert main(["report", "--quiet", "--quiet", "no such place"]) == 3


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """The overview goes to standard output and ends well."""
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in COMMANDS)


def test_help_imports_nothing_heavy() -> None:
    """Help must be quick, so it may not load what only a command needs."""
    code = (
        "import sys; from oasis_sim.cli.main import main; main(['--help']); "
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_answers_at_once() -> None:
    """Help takes less than 0.3 s of processor time (the best of five: machines are shared)."""
    command = [sys.executable, "-c", "from oasis_sim.cli.main import main; main(['--help'])"]
    took = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(took) < 0.3


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """The version names the program."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"oasis-sim {__version__}\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RunFailed("x"), 1),
        (UsageError("x"), 2),
        (InputError("x"), 3),
        (TargetMissed("x"), 4),
        (GpuUnavailable("x"), 5),
        (KeyError("x"), 1),
        (MemoryError(), 1),
        (OSError(28, "No space left on device", "/there"), 1),
        (click.Abort(), 130),
        (click.UsageError("x"), 2),
    ],
)
def test_each_kind_of_failure_has_its_exit_code_and_one_line(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts tell failures apart by the code, people by the line."""
    try:
        raise error
    except Exception as caught:  # noqa: BLE001 - any kind is the point
        assert report_failure(caught) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("oasis-sim: error: ")
    assert len(shown.err.splitlines()) == 1


def test_interrupt_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Control-C is neither success nor a crash."""

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("oasis_sim.cli.main.cli.invoke", interrupt)
    assert main(["run"]) == 130
    assert capsys.readouterr().err == "oasis-sim: error: interrupted\n"


def test_a_message_over_several_lines_becomes_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Several mistakes of a file, and hostile names, stay on one harmless line."""
    report_failure(OasisError("two mistakes:\n  first\n  second \x1b[31mred"))
    assert capsys.readouterr().err == (
        "oasis-sim: error: two mistakes: first second \\x1b[31mred\n"
    )


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["rum"], "did you mean 'run'?"),
        (["--nonsense"], "--nonsense"),
        (["run", "--concurrency", "0"], "oasis-sim run --help"),
        (["run", "--fetch-ratio", "nan"], "finite"),
        (["run", "--fetch-ratio", "1.5"], "0<=x<=1"),
        (["run", "--rate", "0"], "0<x<=1000000000"),
        (["run", "--engine", "vlllm"], "roofline"),
        (["run", "--host-memory", "80 Gb"], "GiB"),
        (["run", "--host-memory", "80"], "GiB"),
        (["schemes", "--format", "xml"], "json"),
        (["run", "surplus"], "surplus"),
    ],
)
def test_wrong_usage_is_one_line_with_code_2(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line says what is wrong and where help is."""
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert hint in shown.err
    assert len(shown.err.splitlines()) == 1


def test_a_reader_that_goes_away_is_no_error() -> None:
    """`oasis-sim ... | head -1` ends quietly."""
    command = f"{sys.executable} -m oasis_sim.cli.main schemes show oasis | head -1"
    script = f"set -o pipefail; {command}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1
    assert done.returncode == 0


@pytest.mark.parametrize("delay", ["", "sleep 1; "])
def test_a_reader_that_is_gone_before_the_first_line_is_no_error(delay: str) -> None:
    """Whether the pipe breaks in the middle or was broken from the start, all stays quiet."""
    program = f"{sys.executable} -m oasis_sim.cli.main schemes show oasis --format csv"
    script = f"set -o pipefail; ({delay}{program}) | true"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device on this system")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["--help"], ["schemes"], ["profiles", "--format", "json"]])
def test_a_full_disk_behind_standard_output_is_named(arguments: list[str], unbuffered: str) -> None:
    """One line that says where there is no space, exit code 1, no trace of the interpreter."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "oasis_sim.cli.main", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=False,
        )
    assert done.stderr == "oasis-sim: error: standard output: No space left on device\n"
    assert done.returncode == 1


def test_a_shell_can_complete_commands() -> None:
    """Typing `oasis-sim ru<TAB>` in bash offers `run`."""
    request = {
        "_OASIS_SIM_COMPLETE": "bash_complete",
        "COMP_WORDS": "oasis-sim ru",
        "COMP_CWORD": "1",
    }
    command = [sys.executable, "-m", "oasis_sim.cli.main"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | request
    )
    assert done.stdout == "plain,run\n"


@pytest.mark.parametrize("arguments", [[], ["trace"]])
def test_no_command_shows_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Who types only the name wants to know what there is, laid out to be read."""
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("Usage: oasis-sim")
    assert "\nCommands:\n" in shown.err


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_stop_the_work(closed: str, tmp_path: Path) -> None:
    """Without standard output or error the run is written whole, with code 0."""
    words = "run --concurrency 1 --requests 1 --output-tokens 4 --scheme dense --out"
    script = f"{sys.executable} -m oasis_sim.cli.main {words} {tmp_path / 'run'} {closed}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (0, False) == (done.returncode, "error" in done.stderr)
    assert (tmp_path / "run" / "manifest.json").is_file()
