"""``oasis-sim trace``: results on standard output, notes on standard error, exit codes."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from oasis_sim.cli.main import main
from oasis_sim.residency.stats import trace_stats
from oasis_sim.trace import AttentionTrace, load_trace, save_trace
from oasis_sim.trace.build import flatten
from tests.strategies import make_trace

Captured = pytest.CaptureFixture[str]


def synthetic() -> AttentionTrace:
    """Return a small trace that calls itself synthetic."""
    trace = make_trace(1, steps=8, stored=20)
    meta = dict(trace.meta) | {"origin": "synthetic", "synthetic": {"seed": 1}}
    return replace(trace, meta=meta)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a directory that holds the traces real.npz and made.jsonl.zst."""
    monkeypatch.chdir(tmp_path)
    save_trace(make_trace(1, steps=8, stored=20), tmp_path / "real.npz")
    save_trace(synthetic(), tmp_path / "made.jsonl.zst")
    return tmp_path


def run(capsys: Captured, *words: str) -> tuple[int, str, str]:
    """Run a command; return exit code, standard output and standard error."""
    code = main(["trace", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_info_says_what_and_where_from(place: Path, capsys: Captured) -> None:
    """The table and the JSON hold the same facts."""
    code, out, err = run(capsys, "info", "made.jsonl", "--format", "json")
    facts = json.loads(out)
    assert (0, "") == (code, err)
    assert ("synthetic", 8, 20, 4) == tuple(
        facts[key] for key in ("origin", "steps", "blocks_ranked_per_head", "block_tokens")
    )
    table = run(capsys, "info", "made.jsonl")[1]
    assert all(key in table for key in facts)


def test_stats_takes_lists_and_repeated_options(place: Path, capsys: Captured) -> None:
    """As `quality` does; what is no number is said with what to use."""
    words = ("stats", "real.npz", "--predictor", "previous", "--format", "json")
    by_lists = run(capsys, *words, "--budget", "24, 32", "--fetch-ratio", "0.2,all")
    repeated = ("--budget", "24", "--budget", "32", "--fetch-ratio", "0.2", "--fetch-ratio", "1")
    assert by_lists == run(capsys, *words, *repeated)
    assert 4 == len(json.loads(by_lists[1])["rows"])
    code, out, err = run(capsys, *words, "--budget", "24,x")
    assert (2, "") == (code, out)
    assert "'x' is no number of tokens; use 1 to" in err


def test_stats_json_is_the_contract(place: Path, capsys: Captured) -> None:
    """One document: trace, origin, and the rows of the library."""
    code, out, err = run(
        capsys,
        *("stats", "real.npz", "--budget", "24", "--fetch-ratio", "0.1", "--fetch-ratio", "1"),
        *("--predictor", "previous", "--format", "json"),
    )
    note = "a fetch ratio of 0.1 x 6 blocks rounds down to 0: nothing is ever fetched\n"
    assert (0, note) == (code, err)
    rows = trace_stats(make_trace(1, steps=8, stored=20), [24], [0.1, 1.0], ["previous"])
    expected = {
        "trace": "random-1",
        "origin": "recorded",
        "rows": [row.to_json() for row in rows],
    }
    assert expected == json.loads(out)


def test_stats_of_synthetic_traces_say_so_in_every_format(place: Path, capsys: Captured) -> None:
    """Table, JSON and each CSV line name the origin."""
    words = ("stats", "made", "--budget", "24", "--format")
    assert "(synthetic trace)" in run(capsys, *words, "table")[1].splitlines()[0]
    assert "synthetic" == json.loads(run(capsys, *words, "json")[1])["origin"]
    lines = list(csv.DictReader(io.StringIO(run(capsys, *words, "csv")[1])))
    assert 8 == len(lines)
    assert {"synthetic"} == {line["origin"] for line in lines}


def test_stats_defaults_answer_what_the_trace_can(place: Path, capsys: Captured) -> None:
    """Default budgets that need more blocks than a trace ranks are left out."""
    trace = make_trace(2, steps=4, stored=70, block_tokens=4, prompt=2048)
    save_trace(trace, "deep.npz")
    code, out, _ = run(capsys, "stats", "deep.npz", "--format", "json")
    assert 0 == code
    assert {256} == {row["budget_tokens"] for row in json.loads(out)["rows"]}
    save_trace(make_trace(2, steps=4, stored=12, prompt=2048), "flat.npz")
    code, out, err = run(capsys, "stats", "flat.npz")
    assert (3, "") == (code, out)
    assert "stored_blocks" in err


def test_samples_show_the_spread(place: Path, capsys: Captured) -> None:
    """Each row says what was kept and how far pieces lie from the whole."""
    words = ("stats", "real.npz", "--budget", "24", "--fetch-ratio", "1", "--sample")
    rows = json.loads(run(capsys, *words, "--format", "json")[1])["rows"]
    assert {"steps", "layers", "heads"} == {row["axis"] for row in rows}
    assert all(0 <= row["overlap_max_deviation"] < 1 for row in rows)
    table = run(capsys, *words)[1]
    assert "4 of 8" in table
    assert "±0.000" in table
    code, _, err = run(capsys, *words, "--predictor", "current")
    assert (2, True) == (code, "--sample" in err)


def test_check_passes_and_doubts(place: Path, capsys: Captured) -> None:
    """A valid file exits 0; what looks wrong is listed."""
    code, out, _ = run(capsys, "check", "real.npz", "--format", "json")
    result = json.loads(out)
    assert (0, True) == (code, result["valid"])
    assert any("adds up to" in warning for warning in result["warnings"])


def test_check_refuses_with_exit_code_3(place: Path, capsys: Captured) -> None:
    """A broken file ends with one line on standard error."""
    raw = (place / "real.npz").read_bytes()
    (place / "cut.npz").write_bytes(raw[: len(raw) // 2])
    code, out, err = run(capsys, "check", "cut.npz")
    assert (3, "", 1) == (code, out, len(err.splitlines()))
    assert "cut.npz" in err


def test_check_finds_contradictions(place: Path, capsys: Captured) -> None:
    """Flags against tokens, a jump, a wrong share, short orders: each is named."""
    trace = make_trace(3, steps=8, stored=6, prompt=80)
    position = trace.position.copy()
    position[4:] += 2
    order = trace.use_order.copy()
    order[0, 0, 0, 3:] = 65535
    odd = replace(
        trace,
        position=position,
        use_order=order,
        accepted={"ngram": 1 - trace.accepted["ngram"]},
        mass=None,
    )
    save_trace(odd, "odd.npz")
    warnings = json.loads(run(capsys, "check", "odd.npz", "--format", "json")[1])["warnings"]
    for word in ("1 steps advance", "8 flags contradict", "the header says", "rank 3", "none is"):
        assert any(word in warning for warning in warnings), word


@pytest.mark.parametrize("suffix", [".npz", ".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_convert_keeps_everything(suffix: str, place: Path, capsys: Captured) -> None:
    """Standard output stays empty; the note goes to standard error."""
    code, out, err = run(capsys, "convert", "made", f"new{suffix}")
    assert (0, "") == (code, out)
    assert "synthetic trace of 8 steps" in err
    expected, found = flatten(synthetic()), flatten(load_trace(f"new{suffix}"))
    assert all((expected[key] == found[key]).all() for key in expected)


def test_convert_replaces_nothing_unasked(place: Path, capsys: Captured) -> None:
    """An existing file needs --force; a suffix without a format is a usage error."""
    before = (place / "real.npz").read_bytes()
    code, _, err = run(capsys, "convert", "made", "real.npz")
    assert (2, True) == (code, "--force" in err)
    assert before == (place / "real.npz").read_bytes()
    assert 0 == run(capsys, "convert", "made", "real.npz", "--force")[0]
    assert 2 == run(capsys, "convert", "made", "x.txt")[0]
    assert 3 == run(capsys, "convert", "made", "no/such/folder/x.npz")[0]


def test_names_cannot_move_the_cursor(place: Path, capsys: Captured) -> None:
    """Control characters and markup in a trace's name are shown, not obeyed."""
    trace = synthetic()
    meta = dict(trace.meta) | {"name": "\x1b[2J[bold]=cmd|'/x'"}
    save_trace(replace(trace, meta=meta), "bad.npz")
    for words in (("stats", "bad.npz", "--budget", "24"), ("info", "bad.npz")):
        out = run(capsys, *words)[1]
        assert "\x1b" not in out
        assert "[bold]" in out


def test_warnings_of_the_reader_go_to_standard_error(place: Path, capsys: Captured) -> None:
    """Unknown keys are said once, on standard error."""
    trace = synthetic()
    save_trace(replace(trace, meta=dict(trace.meta) | {"mine": 1}), "extra.npz")
    code, out, err = run(capsys, "stats", "extra.npz", "--budget", "24", "--format", "json")
    assert 0 == code
    assert json.loads(out)
    assert 1 == err.count("unknown keys")


def test_info_without_a_file_lists_the_shipped_traces(place: Path, capsys: Captured) -> None:
    """One line per shipped trace, each with its origin."""
    from oasis_sim.fileio import shipped_inputs

    code, out, _ = run(capsys, "info", "--format", "json")
    assert 0 == code
    lines = json.loads(out)
    assert len(shipped_inputs("trace")) == len(lines)
    assert all(line["origin"] in {"recorded", "synthetic"} for line in lines)


SMALL = ("--set", "steps=4", "--set", "recorded_layers=2", "--set", "context_tokens=640")


def test_synth_writes_a_trace_that_says_it_is_synthetic(place: Path, capsys: Captured) -> None:
    """Options, then a file of parameters, give the same trace; the seed changes it."""
    code, out, err = run(capsys, "synth", "a.npz", *SMALL, "--seed", "5")
    assert (0, "") == (code, out)
    assert "synthetic trace of 4 steps" in err
    assert load_trace("a.npz").is_synthetic
    (place / "p.yaml").write_text("steps: 4\nrecorded_layers: 2\ncontext_tokens: 640\n")
    assert 0 == run(capsys, "synth", "b.npz", "--parameters", "p.yaml", "--seed", "5")[0]
    assert 0 == run(capsys, "synth", "c.npz", *SMALL, "--seed", "6")[0]
    first, second, third = ((place / f"{name}.npz").read_bytes() for name in "abc")
    assert first == second
    assert first != third


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--set", "steps"), 2),
        (("--set", "steps=one"), 3),
        (("--set", "stpes=4"), 3),
        (("--parameters", "none.yaml"), 3),
    ],
)
def test_synth_refuses_wrong_parameters(
    words: tuple[str, ...], code: int, place: Path, capsys: Captured
) -> None:
    """Unknown names, wrong values and missing files end cleanly and write nothing."""
    found, out, err = run(capsys, "synth", "x.npz", *words)
    assert (code, "", 1) == (found, out, len(err.splitlines()))
    assert not (place / "x.npz").exists()
