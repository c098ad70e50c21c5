"""`oasis-sim sweep`: canonical, content-addressed, resumable; clear ends."""

from __future__ import annotations

import csv
import errno
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oasis_sim.cli.main import main
from oasis_sim.cli.sweep_points import problem_with
from oasis_sim.errors import InputError, RunFailed, UsageError
from oasis_sim.plan import sweep as sweep_module
from oasis_sim.plan.cluster import run_on_ray
from oasis_sim.plan.grid import Grid, expand, parse_vary, read_grid, sort_values
from oasis_sim.plan.pool import run_jobs
from oasis_sim.plan.store import Store

ROOT = Path(__file__).parents[2]
SMALL = ["--trace", "small.npz", "--budget", "64", "--context", "200", "--output-tokens", "20"]
VARY = ["--vary", "fetch_ratio=0.25,1", "--vary", "concurrency=1..4x2"]
POINTS = 6
KILLS = int(os.environ.get("OASIS_SIM_KILL_TRIALS", "2"))
"""How often the kill test kills; more are for a slow, thorough run."""


def sweep(*arguments: str) -> int:
    """Sweep the small grid in this process, with more arguments."""
    return main(["sweep", *SMALL, *VARY, "--quiet", "--workers", "1", *arguments])


def start_sweep(*arguments: str, vary: list[str] = VARY) -> subprocess.Popen[str]:
    """Start a sweep of the small grid as a process of its own.

    It heeds Ctrl-C even where the tests run in the background of a shell, which has them ignore it.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "oasis_sim.cli.main", "sweep", *SMALL, *vary, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads
    )


def runs_of(place: Path) -> dict[str, int]:
    """Return the runs that are there, with the time at which each was written."""
    whole = [path for path in place.glob("runs/*/manifest.json") if path.parent.name[0] != "."]
    return {path.parent.name: path.stat().st_mtime_ns for path in whole}


def tables_of(place: Path) -> dict[str, bytes]:
    """Return the tables of a sweep by name: CSV, and Parquet where pyarrow is installed."""
    return {path.name: path.read_bytes() for path in place.glob("results.*")}


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table."""
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("8..256x2", ("8", "16", "32", "64", "128", "256")),
        ("0.01..0.08x2", ("0.01", "0.02", "0.04", "0.08")),
        ("10..50+20", ("10", "30", "50")),
        ("1..3", ("1", "2", "3")),
        ("1e3..1e5x1e1", ("1000", "10000", "100000")),
        ("0.1,5..6,oasis", ("0.1", "5", "6", "oasis")),
        ("100..100x2", ("100",)),
    ],
)
def test_ranges(text: str, values: tuple[str, ...]) -> None:
    """Ranges hold both ends, exactly as decimal numbers."""
    assert values == expand(text)


@pytest.mark.parametrize(
    "text", ["1..4x1", "0..4x2", "5..4", "1..4+0", "a,,b", "", "0..9e9", "0..1+1e-300", "1..1e400"]
)
def test_ranges_without_end_are_refused(text: str) -> None:
    """What never ends, is empty or has very many steps or digits is a usage error, in few words."""
    with pytest.raises(UsageError) as caught:
        expand(text)
    assert len(str(caught.value)) < 200


def test_what_is_no_range_is_a_name() -> None:
    """Values are names, unless they are numbers or ranges of them."""
    assert ("x=", "a..b") == expand("x=,a..b")


@pytest.mark.parametrize("text", ["1e400", "1e99999999999", "1e-400", "9" * 400, "0." + "1" * 400])
def test_numbers_of_very_many_digits_are_refused(text: str) -> None:
    """They are shown cut short, and never written out."""
    with pytest.raises(UsageError, match="is out of range; write a number of up to") as caught:
        sort_values(["1", text])
    assert len(str(caught.value)) < 120


@given(st.permutations(["10", "2", "0.50", "5e-1", "b", "a", "2.0"]))
def test_values_sort_alike_however_they_are_written(values: list[str]) -> None:
    """Numbers by size, then names; each once."""
    assert ["0.5", "2", "10", "a", "b"] == sort_values(values)


def test_unknown_options_are_named() -> None:
    """A misspelt option is refused with the known ones."""
    with pytest.raises(UsageError, match=r"'colour'; known: .*fetch_ratio"):
        Grid({}, dict([parse_vary("colour=1")])).in_order(["fetch_ratio"])
    with pytest.raises(UsageError, match="write NAME=VALUES"):
        parse_vary("fetch_ratio")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vary: {concurrency: 4..2x2}", "never ends"),
        ("vary: {concurrency: []}", "no value or list"),
        ("vary: {concurrency: true}", "no value or list"),
        ("vray: {concurrency: 4}", "not a known key"),
        ("base: {concurrency: [1, 2]}\nvary: {seed: 1}", "one value each"),
        ("format: oasis-run", "use one of"),
        ("base: {seed: 1}\nvary: {seed: [1, 2]}", "is fixed in 'base' too"),
        ("vary: {colour: 4}", "no option that can be set or varied"),
        ("vary: {fetch_ratoi: 0.1}", "did you mean 'fetch_ratio'"),
        ("vary:\n  fetch_ratio: [0.1, 2]", ":2: vary.fetch_ratio: 2"),
        ("vary: {fetch_ratio: [.nan]}", "not a finite number"),
        ("vary: {rate: [1.0e+300]}", "vary.rate: 1e[+]300 is out of range"),
        ("base: {host_memory: 5}\nvary: {seed: 1}", "has no unit|is not a size"),
        ("vary: {seed: 1, fetch_ratio: 1, fetch-ratio: 1}", "stands twice"),
        ('vary: {seed: ["\\e[31m"]}', r"\\x1b"),
    ],
)
def test_mistakes_in_a_grid_file_are_named(tmp_path: Path, text: str, words: str) -> None:
    """Each mistake is bad input with its file and field."""
    path = tmp_path / "grid.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        read_grid(str(path), problem_with)
    assert "grid.yaml" in str(caught.value)


def test_a_file_and_options_give_the_same_bytes(beside: Path) -> None:
    """Grid file in any order, options, and the written sweep.yaml are one and the same grid."""
    (beside / "grid.yaml").write_text(
        "vary:\n  concurrency: [4, 1, 2]\n  fetch-ratio: [1.0, 0.25]\n"
        "base: {trace: small.npz, budget: 64, context: 200, output_tokens: 20}\n"
    )
    assert sweep("--out", "a") == 0
    assert main(["sweep", "grid.yaml", "--quiet", "--workers", "2", "--out", "b"]) == 0
    assert main(["sweep", "a/sweep.yaml", "--quiet", "--workers", "1", "--out", "c"]) == 0
    assert tables_of(beside / "a") == tables_of(beside / "b") == tables_of(beside / "c")
    rows = read_rows(beside / "a" / "results.csv")
    assert POINTS == len(rows)
    assert [("0.25", "1"), ("0.25", "2"), ("0.25", "4"), ("1", "1"), ("1", "2"), ("1", "4")] == [
        (row["fetch_ratio"], row["concurrency"]) for row in rows
    ]


def test_a_row_is_what_run_says(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The summary of a point is that of the same `run`."""
    assert sweep("--out", "a", "--format", "json") == 0
    row = json.loads(capsys.readouterr().out)[0]
    options = ["--fetch-ratio", "0.25", "--concurrency", "1", "--out", "r", "--quiet"]
    assert main(["run", *SMALL, *options, "--format", "json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["throughput"]["output_tokens_per_s"] == row["throughput.output_tokens_per_s"]
    kept = beside / "a" / "runs" / row["run"]
    assert (beside / "r" / "summary.json").read_bytes() == (kept / "summary.json").read_bytes()
    assert (beside / "r" / "config.yaml").read_bytes() == (kept / "config.yaml").read_bytes()


def test_a_second_sweep_repeats_nothing(beside: Path) -> None:
    """What is there stays; a larger grid adds to it; a damaged run is simulated again."""
    assert sweep("--out", "a") == 0
    first = runs_of(beside / "a")
    table = (beside / "a" / "results.csv").read_bytes()
    assert sweep("--out", "a", "--vary", "seed=0,1") == 0
    second = runs_of(beside / "a")
    assert first == {key: second[key] for key in first}
    assert 2 * POINTS == len(second)
    key = next(iter(first))
    (beside / "a" / "runs" / key / "summary.json").write_text("{")
    assert sweep("--out", "a") == 0
    assert first[key] != runs_of(beside / "a")[key]
    assert table == (beside / "a" / "results.csv").read_bytes()
    (beside / "a" / "runs" / key / "manifest.json").write_text("[" * 100_000)
    assert sweep("--out", "a") == 2


def test_shards_together_are_the_whole(beside: Path) -> None:
    """Until the last shard the table is partial and says what is missing."""
    assert sweep("--out", "whole") == 0
    assert sweep("--out", "a", "--shard", "1/2") == 0
    assert not (beside / "a" / "results.csv").exists()
    partial = read_rows(beside / "a" / "results.partial.csv")
    assert ["done", "missing"] * (POINTS // 2) == [row["status"] for row in partial]
    assert sweep("--out", "a", "--shard", "2/2") == 0
    assert tables_of(beside / "whole") == tables_of(beside / "a")
    assert not (beside / "a" / "results.partial.csv").exists()


def test_shards_of_two_machines_are_merged(beside: Path) -> None:
    """Runs copied together are a sweep: the same command simulates nothing and writes the table."""
    assert sweep("--out", "whole") == 0
    assert sweep("--out", "one", "--shard", "1/2") == 0
    assert sweep("--out", "two", "--shard", "2/2") == 0
    shutil.copytree(beside / "two" / "runs", beside / "one" / "runs", dirs_exist_ok=True)
    merged = runs_of(beside / "one")
    assert sweep("--out", "one") == 0
    assert merged == runs_of(beside / "one")
    assert tables_of(beside / "whole") == tables_of(beside / "one")


def test_a_dry_run_writes_nothing(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The points are listed, nothing is simulated or written."""
    assert sweep("--out", "a", "--dry-run") == 0
    assert POINTS == capsys.readouterr().out.count("missing")
    assert not (beside / "a").exists()


def test_what_does_not_fit_is_a_row(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A refused point has a reason; options that mean nothing to a scheme have no point."""
    arguments = [
        *["sweep", *SMALL, "--quiet", "--workers", "1", "--out", "a", "--format", "json"],
        *["--vary", "model=qwen3-8b,qwen3-235b-a22b", "--vary", "scheme=dense,oasis"],
        *["--vary", "fetch_ratio=0.25,1", "--concurrency", "1"],
    ]
    assert main(arguments) == 0
    rows = json.loads(capsys.readouterr().out)
    assert 6 == len(rows)
    assert [None, 0.25, 1] == [row["fetch_ratio"] for row in rows[:3]]
    assert ["refused"] * 3 + ["done"] * 3 == [row["status"] for row in rows]
    assert "does not fit" in rows[0]["refusal"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--vary", "concurrency=0"], 2, "concurrency"),
        (["--vary", "concurrency="], 2, "--vary concurrency=: names no value"),
        (["--vary", "concurrency=1,,2"], 2, "--vary concurrency: '1,,2': a value is empty"),
        (["--vary", "concurrency=1e400"], 2, "1e400 is out of range"),
        (["--vary", "rate=1e12"], 2, "is not in the range"),
        (["--vary", "colour=1"], 2, "known: profile"),
        ([], 2, "nothing is varied"),
        (["--vary", "profile=h9000"], 3, "h9000"),
        (["--vary", "seed=1", "--shard", "3/2"], 2, "i/n"),
        (["--vary", "seed=1", "--vary", "seed=2"], 2, "twice"),
        (["--vary", "seed=1", "--out", "small.npz"], 2, "is a file"),
        (["--vary", "seed=1", "--out", "."], 2, "no sweep"),
        (["--vary", "seed=1", "--out", "small.npz/below"], 3, "cannot be written"),
    ],
)
def test_refusals(
    beside: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    """Bad grids and places end with one line and their code, before anything is simulated."""
    assert code == main(["sweep", *SMALL, *arguments])
    shown = capsys.readouterr()
    assert words in shown.err
    assert 1 == len(shown.err.splitlines())


def test_a_full_disk_ends_clearly(
    beside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Code 1, one line; what was kept is in the partial table, and the next sweep goes on."""
    real, written = Store.save, []

    def save(self: Store, key: str, *rest: Any) -> None:
        if len(written) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(key)
        real(self, key, *rest)

    monkeypatch.setattr(Store, "save", save)
    assert 1 == sweep("--out", "a")
    assert "No space left on device" in capsys.readouterr().err
    rows = read_rows(beside / "a" / "results.partial.csv")
    assert ["done"] * 2 + ["missing"] * 4 == [row["status"] for row in rows]
    monkeypatch.setattr(Store, "save", real)
    kept = runs_of(beside / "a")
    assert sweep("--out", "a") == 0
    assert kept == {key: runs_of(beside / "a")[key] for key in kept}


def limit_file_size() -> None:
    """Let no file of this process grow beyond 2 KiB, less than a summary takes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))


def test_a_file_that_cannot_grow_ends_clearly(beside: Path) -> None:
    """A real failure to write: code 1, one line, no half-written run, the same command goes on."""
    arguments = [sys.executable, "-m", "oasis_sim.cli.main", "sweep", *SMALL, *VARY, "--quiet"]
    done = subprocess.run(
        [*arguments, "--workers", "1", "--out", "a"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=limit_file_size,
        capture_output=True,
        text=True,
        check=False,
    )
    assert 1 == done.returncode
    assert "a result was not kept: cannot be written (File too large); 0 of 6 were" in done.stderr
    assert "Traceback" not in done.stderr
    assert {} == runs_of(beside / "a")
    assert [] == [path for path in (beside / "a").rglob("*") if path.name.endswith(".partial")]
    assert "missing" in (beside / "a" / "results.partial.csv").read_text()
    assert sweep("--out", "a") == 0
    assert POINTS == len(runs_of(beside / "a"))


def test_no_room_for_the_table_is_a_failed_run(
    beside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The runs are kept, the code is 1, and the same command writes the table later."""

    def fail(self: Store, name: str, *rest: Any, whole: bool) -> Path:
        raise InputError("cannot be written (No space left on device)", file=name)

    real = Store.write_table
    monkeypatch.setattr(Store, "write_table", fail)
    assert 1 == sweep("--out", "a")
    assert "the runs are kept" in capsys.readouterr().err
    assert POINTS == len(runs_of(beside / "a"))
    monkeypatch.setattr(Store, "write_table", real)
    kept = runs_of(beside / "a")
    assert sweep("--out", "a") == 0
    assert kept == runs_of(beside / "a")


def test_two_sweeps_do_not_share_a_place(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second is refused while the first is at work; shards may share."""
    store = Store(beside / "a")
    with store.opened(Grid({}, {"seed": ("1",)}), alone=False):
        assert 2 == sweep("--out", "a")
        assert "another sweep" in capsys.readouterr().err
        assert 0 == sweep("--out", "a", "--shard", "1/6")


def wait_for_runs(place: Path, count: int) -> None:
    """Wait until a sweep has kept some runs."""
    end = time.monotonic() + 180
    while len(runs_of(place)) < count:
        assert time.monotonic() < end, "the sweep makes no progress"
        time.sleep(0.01)


def test_ctrl_c_keeps_what_is_done(beside: Path) -> None:
    """Interrupted with several workers: code 130, no traceback, a partial table."""
    vary = ["--vary", "seed=0..60"]
    process = start_sweep("--out", "a", "--workers", "2", vary=vary)
    wait_for_runs(beside / "a", 1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert 130 == process.returncode
    assert "Traceback" not in errors
    assert "interrupted" in errors
    rows = read_rows(beside / "a" / "results.partial.csv")
    assert {"done", "missing"} == {row["status"] for row in rows}
    assert len(runs_of(beside / "a")) == sum(row["status"] == "done" for row in rows)


def test_kills_at_random_points(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SIGKILL truncates nothing; to go on repeats no finished run and ends in the same table."""
    vary = ["--vary", "seed=0..19"]
    small = ["sweep", *SMALL, *vary, "--quiet"]
    assert main([*small, "--workers", "1", "--out", "whole"]) == 0
    whole = tables_of(beside / "whole")
    chance = random.Random(KILLS)
    for trial in range(KILLS):
        place = beside / f"kill{trial}"
        workers = str(1 + trial % 2)
        process = start_sweep("--quiet", "--out", str(place), "--workers", workers, vary=vary)
        wait_for_runs(place, chance.randrange(0, 15))
        time.sleep(chance.random() * 0.1)
        process.kill()
        process.communicate()
        kept = runs_of(place)
        store = Store(place)
        assert all(store.load(key) is not None for key in kept)
        assert main([*small, "--workers", "1", "--out", str(place)]) == 0
        assert kept == {key: runs_of(place)[key] for key in kept}
        assert whole == tables_of(place)
        assert [] == [path for path in place.rglob("*") if path.name.endswith(".partial")]


def test_a_ray_cluster_gives_the_same_bytes(beside: Path) -> None:
    """CSV and Parquet of a local Ray are those of one process; nothing but the table is printed."""
    pytest.importorskip("ray", reason="needs the extra 'ray'")
    assert sweep("--out", "alone") == 0
    process = start_sweep("--out", "ray", "--cluster", "ray", "--workers", "2", "--quiet")
    _, errors = process.communicate(timeout=180)
    assert (0, "") == (process.returncode, errors)
    assert tables_of(beside / "alone") == tables_of(beside / "ray")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:x"])
def test_a_cluster_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Said at once, with the address, instead of minutes of retries."""
    pytest.importorskip("ray", reason="needs the extra 'ray'")
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(RunFailed, match=f"RAY_ADDRESS={address}"):
        list(run_on_ray(double_or_die, [1], None))


def test_ray_is_refused_before_the_work(
    beside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without Ray the sweep says so at once and names the extra."""
    monkeypatch.setitem(sys.modules, "ray", None)
    assert 2 == sweep("--out", "a", "--cluster", "ray")
    assert "'.[ray]'" in capsys.readouterr().err
    assert not (beside / "a").exists()


def double_or_die() -> Any:
    """Return a job that ends its own process when asked to (a worker that is killed)."""

    def work(value: int) -> int:
        if value < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return 2 * value

    return work


def test_a_killed_worker_is_reported() -> None:
    """A worker that is ended from outside ends the sweep, with advice, instead of hanging it."""
    with pytest.raises(RunFailed, match="fewer --workers"):
        list(run_jobs(double_or_die, [-1, 1], 2))


def test_parquet_holds_the_same(beside: Path) -> None:
    """The Parquet file has the rows and columns of the CSV."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra 'parquet'")
    assert sweep("--out", "a", "--parquet") == 0
    table = parquet.read_table(beside / "a" / "results.parquet").to_pylist()
    rows = read_rows(beside / "a" / "results.csv")
    assert [list(row) for row in rows] == [list(row) for row in table]
    name = "throughput.output_tokens_per_s"
    assert [float(row[name]) for row in rows] == [row[name] for row in table]
    assert [0.25] * 3 + [1.0] * 3 == [row["fetch_ratio"] for row in table]
    assert sweep("--out", "b", "--no-parquet") == 0
    assert not (beside / "b" / "results.parquet").exists()


def test_parquet_is_refused_before_the_work(
    beside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without pyarrow the sweep says so at once and names the extra."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr(sweep_module, "simulate_cells", None)
    assert 2 == sweep("--out", "a", "--parquet")
    assert "'.[parquet]'" in capsys.readouterr().err
