"""The GPU commands from the command line, on a machine without a GPU: output and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oasis_sim.cli.main import main
from oasis_sim.cli.measure import result_place
from oasis_sim.errors import InputError
from oasis_sim.report.directory import is_whole_run
from tests.gpu_exec.schedule_cases import save_run


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide any nvidia-smi of the machine."""
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Return a run directory that holds a schedule."""
    save_run(tmp_path / "run")
    return tmp_path / "run"


def test_replay_table(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table shows every step, the label of the reference, the bytes, and writes the file."""
    assert 0 == main(["replay", "--device", "cpu", str(run_dir)])
    text = capsys.readouterr().out
    assert "CPU ref. ms" in text
    assert "every unit verified" in text
    assert "they say nothing about a GPU" in text
    assert (run_dir / "replay.json").is_file()


def test_replay_json(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output carries one JSON document, the one in the file, and nothing else."""
    assert 0 == main(["replay", "--device", "cpu", str(run_dir), "--format", "json", "--quiet"])
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert json.loads((run_dir / "replay.json").read_text()) == document
    assert "" == captured.err
    assert document["bytes"]["scheduled"] == document["bytes"]["moved"] > 0


def test_a_report_that_cannot_be_written_is_told_before_replaying(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A directory where replay.json should go: exit code 3, nothing executed or printed."""
    (run_dir / "replay.json").mkdir()
    assert 3 == main(["replay", "--device", "cpu", str(run_dir)])
    shown = capsys.readouterr()
    assert "replay.json: is no place for a file" in shown.err
    assert "" == shown.out


def test_replayed_run_is_still_a_whole_run(run_dir: Path) -> None:
    """The report does not make a run directory look as if someone else had written into it."""
    manifest = {"format": "oasis-run", "version": 1, "files": {"schedule.npz": {}}}
    (run_dir / "manifest.json").write_text(json.dumps(manifest))
    assert is_whole_run(run_dir)
    (run_dir / "replay.json").write_text("{}")
    assert is_whole_run(run_dir)
    (run_dir / "thesis.tex").write_text("")
    assert not is_whole_run(run_dir)


def test_replay_on_several_devices(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Heads are split over the devices asked for; more devices than heads is a usage error."""
    assert 0 == main(["replay", "--device", "cpu", "--devices", "2", str(run_dir), "--quiet"])
    text = capsys.readouterr().out
    assert ", 2 devices, driver none" in text
    assert "4 all-reduces per step join the devices" in text
    split = ["replay", "--device", "cpu", "--devices", "2", "--no-all-reduce", "--quiet"]
    assert 0 == main([*split, str(run_dir)])
    assert "all-reduce" not in capsys.readouterr().out
    assert 2 == main(["replay", "--device", "cpu", "--devices", "3", str(run_dir), "--quiet"])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["replay", "--gpu", "RUN"], 5, "missing an NVIDIA GPU"),
        (["replay", "RUN"], 5, "--device cpu"),
        (["replay", "--gpu"], 5, "no usable GPU"),
        (["replay", "--gpu", "--device", "cpu", "RUN"], 2, "contradict"),
        (["replay", "--device", "cpu", "nowhere"], 3, "not a run directory"),
        (["replay", "--device", "cpu", "--host-memory", "80 Gb", "RUN"], 2, "--host-memory"),
        (["replay", "--device", "cpu", "--host-memory", "1 B", "RUN"], 2, "1 MiB"),
        (["calibrate", "--out", "x.yaml"], 2, "--gpu"),
        (["calibrate", "--gpu", "--out", "x.yaml"], 5, "no usable GPU"),
        (["calibrate", "--gpu", "--out", "x.yaml", "--device", "3"], 2, "--device belongs to"),
        (["calibrate", "--gpu", "--out", "x.yaml", "--memory", "host"], 2, "--memory belongs to"),
        (["calibrate", "--gpu", "--out", "x.yaml", "--raw", "./x.yaml"], 2, "name the same file"),
        (["calibrate", "--from-raw", "x.yaml", "--out", "x.yaml"], 2, "name the same file"),
        (["calibrate", "--network", "--out", "x", "--raw", "x"], 2, "name the same file"),
        (["validate", "--measured", "x.json", "--gpu"], 2, "drop --gpu "),
        (["validate", "--measured", "x.json", "--out", "y", "--repeats", "5"], 2, "--out, --rep"),
        (["calibrate", "--gpu", "--out", "x.yaml", "--base", "no-such"], 3, "no-such"),
        (["validate"], 2, "--measured FILE"),
        (["validate", "--gpu"], 5, "no usable GPU"),
        (["validate", "--gpu", "--repeats", "4"], 2, "repeats"),
        (["doctor", "--gpu"], 5, "no usable GPU"),
    ],
)
def test_failures(
    arguments: list[str],
    code: int,
    message: str,
    run_dir: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each failure is one line on standard error with its exit code."""
    filled = [str(run_dir) if word == "RUN" else word for word in arguments]
    assert code == main(filled)
    error = capsys.readouterr().err
    assert message in error
    assert 1 == len(error.strip().splitlines())


def test_hostile_schedule(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A schedule that is cut off is bad input, exit 3, and no report is written."""
    path = run_dir / "schedule.npz"
    path.write_bytes(path.read_bytes()[:-100])
    assert 3 == main(["replay", "--device", "cpu", str(run_dir)])
    assert "schedule.npz" in capsys.readouterr().err
    assert not (run_dir / "replay.json").exists()


def test_doctor_without_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """Doctor is useful without a GPU: it exits 0 and lists the host."""
    assert 0 == main(["doctor"])
    assert "host memory to pin" in capsys.readouterr().out
    assert 0 == main(["doctor", "--format", "json", "--profile", "h200"])
    assert json.loads(capsys.readouterr().out)["usable_gpu"] is False


def test_default_run_on_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a run directory the default run is simulated, scaled down, and replayed."""
    assert 0 == main(["replay", "--device", "cpu", "--quiet"])
    text = capsys.readouterr().out
    assert "the default run" in text
    assert "every unit verified" in text


def test_a_validation_s_place_is_checked_and_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default directory is made; a file in its place, or in that of the result, is told."""
    monkeypatch.chdir(tmp_path)
    assert Path("validation/nvidia-h200.json") == result_place(None, "NVIDIA H200")
    assert (tmp_path / "validation").is_dir()
    with pytest.raises(InputError, match="is no place for a file"):
        result_place(Path("validation"), "NVIDIA H200")
    with pytest.raises(InputError, match="is no place for a file"):
        result_place(Path("missing/h200.json"), "NVIDIA H200")
    (tmp_path / "validation").rmdir()
    (tmp_path / "validation").write_text("")
    with pytest.raises(InputError, match=r"validation: cannot be made .*; use --out FILE"):
        result_place(None, "NVIDIA H200")
