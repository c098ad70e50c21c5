"""The command ``record``, from a model folder and a text to a trace file that reads back."""

from __future__ import annotations

import json

import pytest

from oasis_sim.cli.main import main
from oasis_sim.trace import load_trace

pytest.importorskip("torch", reason="recording needs the extra 'record'")


@pytest.fixture
def text_file(tmp_path):
    """Return a text that the tiny model's tokenizer knows."""
    from tests.record.conftest import tiny_text

    path = tmp_path / "keeper.txt"
    path.write_text(tiny_text(150))
    return path


def arguments(model, text, out, *more: str) -> list[str]:
    """Return a command line for the tiny models."""
    fixed = "--prompt-tokens 96 --steps 6 --block-size 8 --draft-budget 24 --max-perplexity 1e9"
    where = [str(model), "--text", str(text), "--out", str(out)]
    return ["record", *where, *fixed.split(), *more]


def test_record_writes_a_trace_with_a_complete_header(model_folder, text_file, tmp_path, capsys):
    """Standard output is one JSON document, the trace reads back without a warning."""
    out = tmp_path / "tiny.npz"
    more = ["--trajectory", "text", "--licence", "CC0-1.0", "--format", "json"]
    assert 0 == main(arguments(model_folder("llama"), text_file, out, *more))
    captured = capsys.readouterr()
    facts = json.loads(captured.out)
    trace = load_trace(out)
    meta = trace.meta
    assert () == trace.warnings
    assert (6, 5, 2, 96) == (trace.steps, trace.layers, trace.kv_heads, meta["prompt_tokens"])
    assert list(range(96, 102)) == trace.position.tolist()
    assert facts["accepted"] == {
        name: drafter["accepted"] for name, drafter in meta["drafters"].items()
    }
    assert {"ngram", "skip2-2"} == set(trace.drafters)
    assert ("recorded", "tiny") == (meta["origin"], meta["name"])
    assert ("keeper.txt", "CC0-1.0") == (meta["text"]["name"], meta["text"]["licence"])
    assert 64 == len(meta["text"]["sha256"]) == len(meta["model"]["sha256"])
    assert {"bound": "max", "mass": "mean"} == meta["aggregation"]
    assert meta["recorder"].startswith("oasis-sim ")
    assert out.stat().st_size == facts["file_bytes"]
    assert "decode: 6 of 6" in captured.err


def test_record_writes_json_lines_and_a_table(model_folder, text_file, tmp_path, capsys):
    """The suffix decides the format; the table names what was recorded."""
    out = tmp_path / "tiny.jsonl.zst"
    more = ["--quiet", "--ignore-eos", "--no-mass", "--drafter", "ngram"]
    assert 0 == main(arguments(model_folder("qwen3"), text_file, out, *more))
    captured = capsys.readouterr()
    assert "" == captured.err
    assert "ngram accepted" in captured.out
    trace = load_trace(out)
    assert (None, ("ngram",), "tiny") == (trace.mass, trace.drafters, trace.name)


@pytest.mark.parametrize(
    ("name", "code", "problem"),
    [
        ("tiny.csv", 2, "unknown trace format"),
        ("taken.npz", 2, "exists"),
        ("none/tiny.npz", 3, "no place for a file"),
    ],
)
def test_bad_places_are_refused_before_the_work(name, code, problem, text_file, tmp_path, capsys):
    """Nothing is loaded when the trace could not be written: the model need not exist."""
    (tmp_path / "taken.npz").write_bytes(b"")
    assert code == main(arguments("no-model", text_file, tmp_path / name))
    assert problem in capsys.readouterr().err


def test_bad_inputs_end_in_one_line(model_folder, text_file, tmp_path, capsys):
    """A text that is too short, a missing model, a bad option: exit 3, no trace, no traceback."""
    out = tmp_path / "tiny.npz"
    folder = model_folder("llama")
    for model, more, problem in (
        (folder, ["--prompt-tokens", "900"], "150 tokens"),
        (folder, ["--question", "why?"], "no chat form"),
        (folder, ["--layers", "9"], "layers 0 to 4"),
        (folder, ["--steps", "0"], "steps: 0 is out of range"),
        ("no-model", [], "no such file"),
    ):
        assert 3 == main([*arguments(model, text_file, out), *more, "--quiet"])
        error = capsys.readouterr().err
        assert problem in error
        assert 1 == len(error.splitlines())
    assert not out.exists()
