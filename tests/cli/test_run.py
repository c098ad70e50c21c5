"""`oasis-sim run` end to end on a small trace: results, files, repeatability, refusals."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oasis_sim.cli.main import main
from oasis_sim.cli.run import RunPlace
from oasis_sim.cli.terminal import progress_bar
from oasis_sim.errors import UsageError
from oasis_sim.report import directory
from oasis_sim.trace import save_trace
from tests.strategies import make_trace

SMALL = ["--budget", "64", "--context", "200", "--output-tokens", "20", "--concurrency", "2"]
FILES = {
    "config.yaml",
    "summary.json",
    "steps.csv",
    "requests.csv",
    "schedule.npz",
    "timeline.json",
    "manifest.json",
    "run.log",
}


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a directory that holds a small trace."""
    monkeypatch.chdir(tmp_path)
    trace = make_trace(1, block_tokens=16, prompt=300, stored=12, drafters=("ngram", "skip"))
    save_trace(trace, tmp_path / "small.npz")
    return tmp_path


def small_run(*arguments: str) -> int:
    """Run the small scenario with more arguments."""
    return main(["run", "--trace", "small.npz", *SMALL, *arguments])


def content_of(directory: Path) -> dict[str, bytes]:
    """Return the files of a run but for its log."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "run.log"}


def run_directories(place: Path) -> list[Path]:
    """Return the run directories under the default place."""
    return sorted((place / "runs").iterdir()) if (place / "runs").exists() else []


def test_a_run_writes_its_directory_and_prints_its_result(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All files are there, hashed; the result is on standard output, the place on the other."""
    assert small_run("--out", "out") == 0
    shown = capsys.readouterr()
    assert "Throughput" in shown.out
    assert shown.err == "run directory: out\n"
    assert {path.name for path in (beside / "out").iterdir()} == FILES
    manifest = json.loads((beside / "out" / "manifest.json").read_text())
    for name, entry in manifest["files"].items():
        content = (beside / "out" / name).read_bytes()
        assert entry["sha256"] == hashlib.sha256(content).hexdigest()


def test_json_is_one_document_and_the_file_is_the_same(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is printed as JSON is what summary.json holds, and nothing else is printed."""
    assert small_run("--out", "out", "--format", "json", "--quiet") == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out == (beside / "out" / "summary.json").read_text()
    assert json.loads(shown.out)["requests"]["completed"] == 4


def test_csv_output_and_tables_parse(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every table has as many cells in each row as in its header."""
    assert small_run("--out", "out", "--format", "csv") == 0
    texts = [capsys.readouterr().out]
    texts += [(beside / "out" / name).read_text() for name in ("steps.csv", "requests.csv")]
    for text in texts:
        rows = list(csv.reader(io.StringIO(text)))
        assert len(rows) > 1
        assert {len(row) for row in rows} == {len(rows[0])}


def test_the_same_scenario_gives_the_same_bytes(beside: Path) -> None:
    """Only run.log may differ between two runs."""
    assert small_run("--out", "one") == 0
    assert small_run("--out", "two") == 0
    assert content_of(beside / "one") == content_of(beside / "two")


@pytest.mark.parametrize("scheme", ["oasis", "dense", "on-demand", "previous-token", "oracle"])
@pytest.mark.parametrize("engine", ["roofline", "vllm", "gpu_exec"])
def test_every_scheme_runs_on_every_engine(beside: Path, scheme: str, engine: str) -> None:
    """Tokens are conserved and no step beats its roofline, whatever is combined."""
    budget = SMALL if scheme != "dense" else SMALL[2:]
    options = ["--scheme", scheme, "--engine", engine, "--out", "out"]
    assert main(["run", "--trace", "small.npz", *budget, *options]) == 0
    summary = json.loads((beside / "out" / "summary.json").read_text())
    assert summary["throughput"]["output_tokens"] == 4 * 20
    assert summary["steps"]["step_ms"]["mean"] >= summary["bounds"]["step_ms_lower"]
    limit = summary["bounds"]["output_tokens_per_s_upper"]
    assert summary["throughput"]["output_tokens_per_s"] <= limit


PAGES = ["--scheme", "freekv", *SMALL[2:], "--out", "out"]


def test_every_engine_of_the_profile_is_accepted(beside: Path) -> None:
    """FreeKV, InfiniGen and ShadowKV have engines of their own in profile h100."""
    assert main(["run", *PAGES, "--engine", "freekv"]) == 0
    summary = json.loads((beside / "out" / "summary.json").read_text())
    assert summary["scenario"]["engine"] == "freekv"


def test_an_unknown_engine_is_refused_with_those_of_the_profile(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The list is the profile's, not one of the program's."""
    for profile, known in (
        ("h100", "freekv, gpu_exec, infinigen, roofline, shadowkv, vllm"),
        ("mi300x", "roofline, vllm"),
    ):
        assert small_run("--profile", profile, "--engine", "nonesuch") == 2
        assert f"profile {profile} has no engine 'nonesuch'; choose one of: {known}" in (
            capsys.readouterr().err
        )


@pytest.mark.parametrize(
    ("options", "told"),
    [([], True), (["--engine", "freekv"], False), (["--engine", "roofline"], False)],
)
def test_who_prices_a_scheme_with_its_own_engine_is_told(
    beside: Path, capsys: pytest.CaptureFixture[str], options: list[str], told: bool
) -> None:
    """Without --engine FreeKV runs on the engine of OasisKV, which is not its code base."""
    assert main(["run", *PAGES, *options]) == 0
    note = (
        "scheme freekv is priced by engine vllm; profile h100 also has an engine of its own for it "
        "(--engine freekv)"
    )
    assert told == (note in capsys.readouterr().err)


def test_a_config_run_again_gives_the_same_bytes(beside: Path) -> None:
    """config.yaml holds the whole scenario, whatever options made it."""
    options = ["--predictor", "skip", "--cap-blocks", "1", "--rate", "3", "--seed", "7"]
    assert small_run(*options, "--requests", "5", "--out", "one") == 0
    assert main(["run", "--config", "one/config.yaml", "--out", "two"]) == 0
    assert content_of(beside / "one") == content_of(beside / "two")


def test_a_request_file_run_again_gives_the_same_bytes(beside: Path) -> None:
    """The same holds for requests from a file."""
    (beside / "day.csv").write_text(
        "arrival_s,prompt_tokens,output_tokens\n0,100,9\n1.5,300,12\n2,50,3\n"
    )
    load = ["--workload", "day.csv", "--workload-format", "csv", "--requests", "2"]
    arguments = ["run", "--trace", "small.npz", "--budget", "64", *load]
    assert main([*arguments, "--out", "one"]) == 0
    assert main(["run", "--config", "one/config.yaml", "--out", "two"]) == 0
    assert content_of(beside / "one") == content_of(beside / "two")
    summary = json.loads((beside / "one" / "summary.json").read_text())
    assert summary["scenario"]["workload"]["prompt_tokens"]["max"] == 300


def test_capacities_and_a_replicas_share_are_part_of_the_scenario(beside: Path) -> None:
    """HBM, link and share of a file are in config.yaml, and every third request is what is run."""
    rows = [f"{number},{100 + number},5" for number in range(7)]
    (beside / "day.csv").write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    load = ["--workload", "day.csv", "--workload-format", "csv", "--every", "3"]
    capacities = ["--hbm-memory", "60 GiB", "--host-memory", "9 GB", "--pcie", "40 GB/s"]
    arguments = ["run", "--trace", "small.npz", "--budget", "64", *load, *capacities]
    assert main([*arguments, "--out", "one"]) == 0
    assert main(["run", "--config", "one/config.yaml", "--out", "two"]) == 0
    assert content_of(beside / "one") == content_of(beside / "two")
    summary = json.loads((beside / "one" / "summary.json").read_text())
    assert [100, 106, 3] == [
        summary["scenario"]["workload"]["prompt_tokens"]["min"],
        summary["scenario"]["workload"]["prompt_tokens"]["max"],
        summary["requests"]["arrived"],
    ]
    tiers = summary["tiers"]
    assert [60 * 2**30, 9 * 10**9] == [tiers[name]["capacity_bytes"] for name in ("hbm", "host")]
    assert pytest.approx(40) == summary["links"]["pcie_d2h"]["limit_gb_per_s"]


def test_options_on_top_of_a_config_change_the_run(beside: Path) -> None:
    """A config is a starting point."""
    assert small_run("--out", "one") == 0
    assert main(["run", "--config", "one/config.yaml", "--requests", "3", "--out", "two"]) == 0
    summary = json.loads((beside / "two" / "summary.json").read_text())
    assert summary["requests"]["arrived"] == 3


def test_a_changed_input_is_noticed(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A config is not run on another trace of the same name."""
    assert small_run("--out", "one") == 0
    save_trace(make_trace(2, block_tokens=16, prompt=300), beside / "small.npz")
    capsys.readouterr()
    assert main(["run", "--config", "one/config.yaml", "--out", "two"]) == 3
    assert "fingerprints.trace_1" in capsys.readouterr().err
    assert not (beside / "two").exists()
    again = ["run", "--config", "one/config.yaml", "--trace", "small.npz", "--out", "two"]
    assert main(again) == 0


def test_without_out_the_place_follows_from_the_scenario(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Running the same command twice works and leaves one directory; another scenario, two."""
    assert small_run() == 0
    first = run_directories(beside)
    assert len(first) == 1
    capsys.readouterr()
    assert small_run() == 0
    assert "same bytes" in capsys.readouterr().err
    assert run_directories(beside) == first
    assert small_run("--seed", "1") == 0
    assert len(run_directories(beside)) == 2


def test_a_default_place_with_foreign_files_keeps_them(beside: Path) -> None:
    """Results that a user added to a run survive a repetition."""
    assert small_run() == 0
    place = run_directories(beside)[0]
    (place / "notes.txt").write_text("mine")
    assert small_run() == 0
    (place / "steps.csv").write_text("damaged")
    assert small_run() == 2
    assert (place / "notes.txt").read_text() == "mine"


def test_a_damaged_default_run_is_written_again(beside: Path) -> None:
    """A directory with nothing but our files is replaced when its bytes are not ours."""
    assert small_run() == 0
    place = run_directories(beside)[0]
    before = content_of(place)
    (place / "steps.csv").write_text("damaged")
    assert small_run() == 0
    assert content_of(place) == before


def test_two_processes_that_write_the_same_run_agree(
    beside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who comes second finds the same bytes there and is content."""
    answers = iter([False, True])
    monkeypatch.setattr(directory, "holds_same_run", lambda *_: next(answers))
    (beside / "taken").mkdir()
    (beside / "taken" / "file").write_text("")
    RunPlace(beside / "taken", named=False, force=False).write({}, "", quiet=True)
    answers = iter([False, False])
    with pytest.raises(UsageError):
        RunPlace(beside / "taken", named=False, force=False).write({}, "", quiet=True)


def test_the_format_of_a_request_file_does_not_show_in_the_results(beside: Path) -> None:
    """Line ends and the file's name change nothing in summary.json."""
    rows = "arrival_s,prompt_tokens,output_tokens\n0,100,9\n1.5,300,12\n"
    (beside / "unix.csv").write_bytes(rows.encode())
    (beside / "dos.csv").write_bytes(rows.replace("\n", "\r\n").encode())
    arguments = ["run", "--trace", "small.npz", "--budget", "64", "--workload-format", "csv"]
    for name in ("unix", "dos"):
        assert main([*arguments, "--workload", f"{name}.csv", "--out", name]) == 0
    summaries = [(beside / name / "summary.json").read_bytes() for name in ("unix", "dos")]
    assert summaries[0] == summaries[1]


def test_a_taken_place_is_refused_unless_forced(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An earlier run is not overwritten by accident."""
    assert small_run("--out", "out") == 0
    capsys.readouterr()
    assert small_run("--out", "out") == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "--force" in shown.err
    assert small_run("--out", "out", "--force") == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--profile", "h9000"], 3),
        (["--model", "nonesuch"], 3),
        (["--scheme", "nonesuch"], 3),
        (["--trace", "nonesuch.npz"], 3),
        (["--config", "nonesuch.yaml"], 3),
        (["--workload", "nonesuch.csv", "--workload-format", "csv"], 3),
        (["--predictor", "nonesuch"], 3),
        (["--tp", "7"], 2),
        (["--out", "small.npz"], 2),
        (["--model", "qwen3-235b-a22b"], 1),
    ],
)
def test_refusals_are_one_line_and_leave_nothing_behind(
    beside: Path, arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback, no half-written directory, the right exit code."""
    before = {path.name for path in beside.iterdir()}
    size = SMALL if "--workload" not in arguments else []
    assert main(["run", "--trace", "small.npz", *size, *arguments]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines()[-1].startswith("oasis-sim: error: ")
    assert "Traceback" not in shown.err
    assert {path.name for path in beside.iterdir()} == before


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("seed: -1", "seed"),
        ("seed: true", "seed"),
        ("tp: '2'", "tp"),
        ("max_steps: .nan", "max_steps"),
        ("version: 2", "version"),
        ("concurrency: 0", "concurrency"),
        ("unknown: 1", "unknown"),
        ("trace: []", "trace"),
        ("workload: {kind: closed}", "workload.kind"),
        ("workload: {kind: poisson}", "rate_per_s"),
        ("scheme: {name: x, fetch_ratio: 2}", "fetch_ratio"),
    ],
)
def test_a_config_with_a_mistake_is_refused_with_its_place(
    beside: Path, line: str, field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the file, the line and the field."""
    head = {"format": "oasis-config", "version": "1"}
    head.pop(line.partition(":")[0], None)
    text = "".join(f"{key}: {value}\n" for key, value in head.items()) + f"{line}\n"
    (beside / "bad.yaml").write_text(text)
    assert main(["run", "--config", "bad.yaml"]) == 3
    message = capsys.readouterr().err
    assert f"bad.yaml:{len(head) + 1}" in message
    assert field in message


def test_a_short_config_means_the_defaults(beside: Path) -> None:
    """What a hand-written config leaves out is the default scenario's."""
    (beside / "own.yaml").write_text(
        "format: oasis-config\nversion: 1\nscheme: dense\nmodel: smollm2-135m\n"
        "workload: {kind: closed_loop, requests: 3, context_tokens: 100, output_tokens: 5}\n"
    )
    assert main(["run", "--config", "own.yaml", "--out", "out"]) == 0
    scenario: dict[str, Any] = json.loads((beside / "out" / "summary.json").read_text())["scenario"]
    assert (scenario["scheme"], scenario["engine"], scenario["requests"]) == ("dense", "vllm", 3)


def test_no_bar_and_no_colour_off_a_terminal(beside: Path) -> None:
    """Piped output holds no escape sequence."""
    command = [sys.executable, "-m", "oasis_sim.cli.main", "run", "--trace", "small.npz", *SMALL]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        command, capture_output=True, check=True, env={"PYTHONPATH": str(root), "PATH": ""}
    )
    assert b"\x1b" not in done.stdout + done.stderr
    assert done.stdout.count(b"Throughput") == 1


def test_progress_is_drawn_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody watches there is no callback at all."""
    with progress_bar("x") as progress:
        assert progress is None

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar("simulating") as progress:
        assert progress is not None
        progress(5, 10)
        progress(10, 10)
    assert "simulating" in terminal.getvalue()
    with progress_bar("x", quiet=True) as progress:
        assert progress is None


@pytest.mark.parametrize("output_format", ["table", "json", "csv"])
def test_a_note_on_the_requests_is_told_once(
    output_format: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A terminal shows both streams: the table has the note, beside data it goes to the other."""
    monkeypatch.chdir(tmp_path)
    row = '{"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1]}\n'
    (tmp_path / "requests.jsonl").write_text(row)
    options = ("--workload", "requests.jsonl", "--workload-format", "mooncake")
    assert main(["run", *options, "--scheme", "dense", "--format", output_format]) == 0
    shown = capsys.readouterr()
    in_table = output_format == "table"
    assert shown.err.count("hash_ids are ignored") == (0 if in_table else 1)
    assert shown.out.count("hash_ids are ignored") == 1


def test_several_schemes_tell_a_note_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The requests are the same for all schemes, so what is said of them is, too."""
    monkeypatch.chdir(tmp_path)
    row = '{"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1]}\n'
    (tmp_path / "requests.jsonl").write_text(row)
    options = ("--workload", "requests.jsonl", "--workload-format", "mooncake")
    for command in (["run", "--scheme", "dense,quest"], ["compare", "dense", "quest"]):
        assert main([*command, *options]) == 0
        assert capsys.readouterr().err.count("hash_ids are ignored") == 1


@pytest.mark.parametrize(
    ("scheme", "options", "told"),
    [
        ("dense", ["--trace", "small.npz"], ["--trace"]),
        ("dense", ["--host-memory", "1 TB", "--pcie", "4"], ["--host-memory", "--pcie"]),
        ("quest", ["--pcie", "4"], ["--pcie"]),
        ("oasis", ["--host-memory", "1 TB", "--pcie", "4"], []),
        ("dense", [], []),
    ],
)
def test_options_without_effect_are_told(
    beside: Path,
    capsys: pytest.CaptureFixture[str],
    scheme: str,
    options: list[str],
    told: list[str],
) -> None:
    """What describes machine or data is true for every scheme, so it is told, not refused."""
    small = SMALL[2:] if scheme == "dense" else [*SMALL, "--trace", "small.npz"]
    assert main(["run", "--scheme", scheme, *options, *small, "--out", "out"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "has no effect" in line]
    assert told == [line.split()[0] for line in lines]


def test_a_part_that_the_scheme_does_not_use_is_refused(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and nothing written."""
    assert main(["run", "--scheme", "dense", "--budget", "512", "--out", "out"]) == 2
    assert "budget_tokens: has no effect: all KV is attended" in capsys.readouterr().err
    assert not (beside / "out").exists()


@pytest.mark.parametrize("out", ["file/run", "/proc/run"])
def test_an_unwritable_place_is_told_before_simulating(
    out: str, beside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 3 with the place, and not one step is simulated."""
    monkeypatch.setattr("oasis_sim.engine.simulate", None)
    (beside / "file").write_text("")
    assert small_run("--out", out) == 3
    assert f"{out}: cannot be written" in capsys.readouterr().err
