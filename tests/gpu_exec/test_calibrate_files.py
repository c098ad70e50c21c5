"""Recorded readings and validation files: read back, derived again, refused when damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gpu_exec.calibrate_run import run_calibration
from gpu_exec.matrix import ValidationCase, validation_matrix
from gpu_exec.probes import GapProbe, Notebook
from gpu_exec.recorded_bench import RecordedBench
from gpu_exec.repeatability import Comparison
from gpu_exec.validate import Origin, Summary, simulate_again, to_json, validate
from gpu_exec.validation_file import read_validation
from oasis_sim.cli.main import main
from oasis_sim.engine.schedule import Schedule
from oasis_sim.errors import InputError
from oasis_sim.hardware import load_profile
from oasis_sim.hardware.load import read_profile
from oasis_sim.model import load_model
from tests.gpu_exec.fake_bench import FakeBench
from tests.gpu_exec.schedule_cases import Case, make_schedule
from tests.gpu_exec.test_validate import measure_with, predict

ROOT = Path(__file__).parents[2]
ORIGIN = Origin("FAKE", "580", "2026-01-01T00:00:00Z", "oasis-sim calibrate --gpu", "none")


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the raw readings of a fake card."""
    profile, model = load_profile("h200"), load_model("qwen3-8b")
    book = Notebook(FakeBench(profile, model))
    path = tmp_path_factory.mktemp("raw") / "raw.json"
    result = run_calibration(book, profile, model, "fake", ORIGIN)
    path.write_text(json.dumps(result.readings))
    return path


def test_profile_from_readings(raw: Path, tmp_path: Path) -> None:
    """Recorded readings give the profile that the card gave, without a GPU, byte for byte."""
    profile, model = load_profile("h200"), load_model("qwen3-8b")
    first = run_calibration(
        Notebook(FakeBench(profile, model)), profile, model, "again", ORIGIN
    ).profile_text
    out = tmp_path / "again.yaml"
    assert 0 == main(["calibrate", "--from-raw", str(raw), "--out", str(out), "--quiet"])
    assert first == out.read_text()


def test_the_shipped_profile_is_that_of_its_readings(tmp_path: Path) -> None:
    """Anyone can derive it again, and all its readings come back within 3 %."""
    out, raw = tmp_path / "h200.yaml", ROOT / "validation" / "h200-calibration.json"
    assert 0 == main(["calibrate", "--from-raw", str(raw), "--out", str(out), "--quiet"])
    found, shipped = read_profile(out), load_profile("h200")
    assert shipped.engine("gpu_exec") == found.engine("gpu_exec")
    assert (shipped.pcie, shipped.gpu) == (found.pcie, found.gpu)


def test_two_calibrations_of_one_card_agree() -> None:
    """All readings of both come back, and their numbers agree within 3 % but for five.

    Those are of two points that calibration has given up: selection at 144 requests, whose two
    speeds move the line through the others, too, and QKV of 304 rows.
    """
    files = [ROOT / "validation" / f"h200-calibration-19ef56f{part}" for part in ("", "-second")]
    for file in files:
        readings = json.loads(file.with_suffix(".json").read_text())["readings"]
        assert 270 == len(readings)
        assert max(reading["repeat_pct"] for reading in readings) <= 3.0
    first, second = (read_profile(file.with_suffix(".yaml")) for file in files)
    numbers = Comparison(first, second, load_model("qwen3-8b")).numbers()
    committed = json.loads((ROOT / "validation" / "calibration-repeat.json").read_text())
    known = {entry["field"]: entry["difference_pct"] for entry in committed["numbers"]}
    assert {n.field for n in numbers} <= set(known)
    assert [pytest.approx(n.difference_pct) for n in numbers] == [known[n.field] for n in numbers]
    assert {field for field, pct in known.items() if pct > 3.0} == {
        "selection, 112 requests of 6144 tokens",
        "selection, 144 requests of 6144 tokens",
        "selection, 144 requests of 12288 tokens",
        "linear_efficiency.qkv at 304 rows",
        "transports.sm_gather.qkv_slowdown at 304 rows",
    }


def test_the_result_as_json(raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output is one JSON document: the file, how many readings, which do not repeat."""
    out = tmp_path / "again.yaml"
    arguments = ["calibrate", "--from-raw", str(raw), "--out", str(out), "--format", "json"]
    assert 0 == main(arguments)
    count = len(json.loads(raw.read_text())["readings"])
    shown = json.loads(capsys.readouterr().out)
    assert {"profile": str(out), "probes": count, "unstable": []} == shown


def test_missing_reading(raw: Path) -> None:
    """A probe that was not recorded is named."""
    with pytest.raises(InputError, match="no reading of a graph of 7 empty kernels"):
        RecordedBench(raw).measure_ms(GapProbe(nodes=7), 1)


def test_missing_rounds(raw: Path) -> None:
    """Recorded rounds come back in order; asking for more than there are names the probe."""
    bench = RecordedBench(raw)
    recorded = next(
        reading["rounds_ms"]
        for reading in json.loads(raw.read_text())["readings"]
        if reading["probe"] == "GapProbe"
    )
    assert recorded == [bench.measure_ms(GapProbe(), 1) for _ in recorded]
    with pytest.raises(InputError, match="no more rounds of a graph of 1,000 empty kernels"):
        bench.measure_ms(GapProbe(), 2)


def test_from_raw_excludes_the_gpu(raw: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Measuring and deriving at once is a usage error."""
    assert 2 == main(["calibrate", "--gpu", "--from-raw", str(raw), "--out", "x.yaml"])
    assert "--from-raw" in capsys.readouterr().err


Change = Callable[[dict[str, Any]], Any]
RAW_BREAKS: dict[str, Change] = {
    "format": lambda d: d.update(format="x"),
    "version": lambda d: d.update(version=1),
    "card": lambda d: d.update(card=[]),
    "origin.gpu": lambda d: d.update(gpu=7),
    "readings": lambda d: d.update(readings={}),
    "readings[0]": lambda d: d["readings"].__setitem__(0, "x"),
    "card.hbm_bytes": lambda d: d["card"].update(hbm_bytes=0),
    "card.sms": lambda d: d["card"].update(sms=10**6),
    "readings[1]": lambda d: d["readings"][1].update(probe=["LinkProbe"]),
    "readings[1].speed": lambda d: d["readings"][1].update(speed=1),
    "readings[5]": lambda d: d["readings"].insert(5, {**d["readings"][2], "rounds_ms": [9.0]}),
    "readings[5].rounds_ms": lambda d: d["readings"][5].update(rounds_ms=[1e300] * 3),
    "readings[1].rounds_ms": lambda d: d["readings"][1]["rounds_ms"].__setitem__(0, 0),
    "readings[2].rounds_ms": lambda d: d["readings"][2].update(rounds_ms="1"),
    "readings[3].rounds_ms": lambda d: d["readings"][3].pop("rounds_ms"),
    "readings[4].nodes": lambda d: d["readings"].insert(
        4, {"probe": "GapProbe", "rounds_ms": [1.0]}
    ),
}


@pytest.mark.parametrize("field", sorted(RAW_BREAKS))
def test_damaged_readings(field: str, raw: Path, tmp_path: Path) -> None:
    """Each damaged field of the raw file is refused by name."""
    document = json.loads(raw.read_text())
    RAW_BREAKS[field](document)
    path = tmp_path / "raw.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError) as caught:
        RecordedBench(path)
    assert field == caught.value.field


def test_readings_without_sense_make_no_profile(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Copies that take as long whatever they move give speeds that no profile may state."""
    document = json.loads(raw.read_text())
    for entry in document["readings"]:
        pair = entry.get("stages", [])[1:] == ["transfer"] and entry["block_tokens"] == 64
        if pair and entry["transport"] == "naive":
            entry["rounds_ms"] = [99.0] * len(entry["rounds_ms"])
    (tmp_path / "raw.json").write_text(json.dumps(document))
    out = tmp_path / "card.yaml"
    assert 1 == main(["calibrate", "--from-raw", str(tmp_path / "raw.json"), "--out", str(out)])
    shown = capsys.readouterr().err
    assert "the readings make no profile" in shown
    assert "transports.naive.idle_speedup[2]: 1000000 is out of range" in shown
    assert not out.exists()


def test_what_a_card_says_of_itself_cannot_change_its_profile(raw: Path, tmp_path: Path) -> None:
    """Line breaks of every kind, escapes and half characters stay on one line of a comment."""
    document = json.loads(raw.read_text())
    odd = "a\nname: b\u2028c: d\x85e: f\x1b[31m\ud800"
    document.update(dict.fromkeys(("gpu", "driver", "date", "command", "commit"), odd))
    document["card"].update(dict.fromkeys(("name", "driver", "software"), odd))
    (tmp_path / "raw.json").write_text(json.dumps(document))
    out = tmp_path / "card.yaml"
    assert 0 == main(["calibrate", "--from-raw", str(tmp_path / "raw.json"), "--out", str(out)])
    assert "card" == load_profile(str(out)).name


# Validation files -------------------------------------------------------------------------------


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Return the validation file of a fake card over the whole matrix."""
    rows = validate(validation_matrix(), predict, measure_with(1.02))
    path = tmp_path / "fake.json"
    path.write_text(json.dumps(to_json(ORIGIN, rows, Summary(22, 1.0, 2.0))))
    return path


def test_validation_reads_back(measured: Path) -> None:
    """Rows and origin come back, and each configuration names its case."""
    origin, rows = read_validation(measured)
    assert ORIGIN == origin
    cases = {ValidationCase.from_config(row.config) for row in rows}
    assert {ValidationCase.from_config(c.config()) for c in validation_matrix()} == cases
    assert [case.config() for case in validation_matrix()] == [
        row.config for row in rows if row.metric == "step_time"
    ]


def test_simulate_again(measured: Path) -> None:
    """New predictions replace the old ones; measurements stay; each case is simulated once."""
    _, rows = read_validation(measured)
    asked = []

    def slower(case: ValidationCase) -> Schedule:
        asked.append(case)
        schedule = make_schedule(Case())
        schedule.sim_step_ps[:] = 2 * 10**9
        return schedule

    again = simulate_again(rows, slower)
    assert len(asked) == len(set(asked)) == len(validation_matrix())
    for old, new in zip(rows, again, strict=True):
        assert (old.measured, old.spread_pct) == (new.measured, new.spread_pct)
        if new.metric == "step_time":
            assert (pytest.approx(2.0), pytest.approx(96.1, abs=0.1)) == (
                new.simulated,
                new.error_pct,
            )


FILE_BREAKS: dict[str, Change] = {
    "rows": lambda d: d.update(rows=1),
    "gpu": lambda d: d.pop("gpu"),
    "rows[0]": lambda d: d["rows"].__setitem__(0, []),
    "rows[0].unit": lambda d: d["rows"][0].update(unit="s"),
    "rows[0].metric": lambda d: d["rows"][0].update(metric="speed"),
    "rows[0].measured": lambda d: d["rows"][0].update(measured=0),
    "rows[1].measured": lambda d: d["rows"][1].update(measured=1e308),
    "rows[1].metric": lambda d: d["rows"][1].update(metric="stage.qkv+speed"),
    "rows[2].clocked": lambda d: d["rows"][2].update(clocked=1e308),
    "rows[2].spread_pct": lambda d: d["rows"][2].update(spread_pct=-0.1),
    "rows[3]": lambda d: d["rows"].insert(3, {**d["rows"][0], "measured": 9.0}),
    "rows[1].config.scheme": lambda d: d["rows"][1]["config"].update(scheme="/etc/passwd"),
    "rows[1].config.transport": lambda d: d["rows"][1]["config"].update(transport="cpu_gather"),
    "rows[0].config.budget_tokens": lambda d: d["rows"][0]["config"].update(budget_tokens=2047),
    "rows[1].config.budget_tokens": lambda d: d["rows"][1]["config"].update(budget_tokens=1 << 20),
    "rows[0].spread_pct": lambda d: d["rows"][0].update(spread_pct="x"),
    "rows[0].clocked": lambda d: d["rows"][0].update(clocked="x"),
    "rows[0].config": lambda d: d["rows"][0]["config"].update(surprise=1),
    "rows[0].config.batch": lambda d: d["rows"][0]["config"].update(batch=10**9),
    "rows[0].config.context_tokens": lambda d: d["rows"][0]["config"].update(context_tokens=1e5),
    "rows[0].config.scheme": lambda d: d["rows"][0]["config"].update(scheme=5),
    "rows[0].config.fetch_ratio": lambda d: d["rows"][0]["config"].update(fetch_ratio=2.0),
}


@pytest.mark.parametrize("field", sorted(FILE_BREAKS))
def test_damaged_validation(field: str, measured: Path, tmp_path: Path) -> None:
    """Each damaged field of a validation file is refused by name."""
    document = json.loads(measured.read_text())
    FILE_BREAKS[field](document)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError) as caught:
        read_validation(path)
    assert field == caught.value.field


def test_a_validation_without_step_times_is_refused(measured: Path, tmp_path: Path) -> None:
    """A file that holds no row, or stages of a configuration alone, has nothing to judge."""
    document = json.loads(measured.read_text())
    path = tmp_path / "bad.json"
    alone = {**document["rows"][0], "metric": "stage.qkv"}
    for rows, problem in (
        ([], "rows: is empty"),
        ([alone], "have stage.qkv of .*, but no step_time"),
    ):
        path.write_text(json.dumps({**document, "rows": rows}))
        with pytest.raises(InputError, match=problem):
            read_validation(path)


@pytest.mark.parametrize("key", ["fetch_ratio", "transport", "budget_tokens"])
def test_a_sparse_configuration_takes_no_defaults(measured: Path, tmp_path: Path, key: str) -> None:
    """What is empty in it was not measured so."""
    document = json.loads(measured.read_text())
    row = next(row for row in document["rows"] if row["config"]["scheme"] != "dense")
    row["config"][key] = None
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match="is missing") as caught:
        read_validation(path)
    assert str(caught.value.field).endswith(f".config.{key}")


def test_validate_again_on_the_command_line(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`validate --measured` simulates the configurations of a file and judges by the bounds."""
    document = json.loads(measured.read_text())
    case = ValidationCase(16, 8192, fetch_ratio=0.02)
    row = {**document["rows"][0], "config": asdict(case)}
    document["rows"] = [row]
    path = tmp_path / "one.json"
    path.write_text(json.dumps(document))
    assert 4 == main(["validate", "--measured", str(path), "--format", "json"])
    captured = capsys.readouterr()
    again = json.loads(captured.out)
    assert 1 == again["summary"]["configs"]
    assert 1.02 == pytest.approx(again["rows"][0]["measured"], rel=0.01)
    assert "off by" in captured.err
