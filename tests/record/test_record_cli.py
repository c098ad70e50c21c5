"""The command ``record``, from a model folder and a text to a trace file that reads back."""

from __future__ import annotations

import json

import numpy as np
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
    usual = "--prompt-tokens 96 --steps 6 --block-size 8 --draft-budget 24 --max-perplexity 1e9"
    pairs = zip(usual.split()[::2], usual.split()[1::2], strict=True)
    fixed = [word for option, value in pairs if option not in more for word in (option, value)]
    where = [str(model), "--text", str(text), "--out", str(out)]
    return ["record", *where, *fixed, *more]


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
    assert 64 == len(meta["model"]["tokenizer_sha256"])
    name = model_folder("llama").name
    assert meta["recording"]["command"].startswith(f"oasis-sim record {name} --text keeper.txt ")
    assert str(tmp_path) not in json.dumps(dict(meta))
    assert "cpu" == meta["recording"]["device"]
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


def test_several_block_sizes_give_one_trace_each(model_folder, text_file, tmp_path, capsys):
    """Each size is a file of its own, the same as when it is recorded alone."""
    more = ["--quiet", "--ignore-eos", "--draft-budget", "48", "--drafter", "skip"]
    folder = model_folder("llama")
    out = tmp_path / "tiny.npz"
    both = [*more, "--block-size", "8, 16", "--format", "json"]
    assert 0 == main(arguments(folder, text_file, out, *both))
    facts = json.loads(capsys.readouterr().out)["traces"]
    assert ["tiny-b8", "tiny-b16"] == [each["trace"] for each in facts]
    assert not out.exists()
    for size in (8, 16):
        alone = tmp_path / f"alone-{size}.npz"
        assert 0 == main(arguments(folder, text_file, alone, *more, "--block-size", str(size)))
        first, second = load_trace(tmp_path / f"tiny-b{size}.npz"), load_trace(alone)
        assert size == first.block_tokens == second.block_tokens
        np.testing.assert_array_equal(first.use_order, second.use_order)
        np.testing.assert_array_equal(first.mass, second.mass)
        np.testing.assert_array_equal(first.pred_order["skip2-2"], second.pred_order["skip2-2"])


def test_checkpoints_leave_the_bytes_as_they_are(model_folder, text_file, tmp_path):
    """With a checkpoint folder the file is the same, and the folder is gone at the end."""
    folder, more = model_folder("llama"), ["--quiet", "--ignore-eos", "--drafter", "skip"]
    files = [tmp_path / "a" / "tiny.npz", tmp_path / "b" / "tiny.npz"]
    for file, kept in zip(files, ([], ["--checkpoint", str(tmp_path / "kept")]), strict=True):
        file.parent.mkdir()
        assert 0 == main(arguments(folder, text_file, file, *more, *kept))
    assert files[0].read_bytes() == files[1].read_bytes()
    assert not (tmp_path / "kept").exists()


def test_an_interrupted_command_goes_on_between_block_sizes(
    model_folder, text_file, tmp_path, monkeypatch
):
    """Interrupted in the second size, the same command ends with the files of a whole one."""
    from oasis_sim.record import progress

    def interrupt(stage: str, done: int, total: int) -> None:
        if stage.startswith("draft rows") and stage.endswith("blocks of 16"):
            raise KeyboardInterrupt

    more = ["--quiet", "--drafter", "skip", "--block-size", "8,16", "--draft-budget", "48"]
    commands = []
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        commands.append(
            arguments(model_folder("llama"), text_file, tmp_path / place / "tiny.npz", *more)
        )
    assert 0 == main(commands[0])
    kept = [*commands[1], "--checkpoint", str(tmp_path / "kept")]
    with monkeypatch.context() as patch:
        patch.setattr(progress, "no_progress", interrupt)
        assert 130 == main(kept)
    assert (tmp_path / "kept").exists()
    assert 0 == main(kept)
    for name in ("tiny-b8.npz", "tiny-b16.npz"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert not (tmp_path / "kept").exists()


def test_token_ids_and_chats_are_recorded(model_folder, tmp_path, capsys):
    """Ids go through as they are; a chat needs the model's form, which the tiny one lacks."""
    ids = [2 + (i * 7) % 40 for i in range(110)]
    (tmp_path / "ids.json").write_text(json.dumps(ids))
    out = tmp_path / "tiny.npz"
    command = arguments(model_folder("llama"), tmp_path / "ids.json", out, "--quiet")
    command[command.index("--text")] = "--tokens"
    assert 0 == main([*command, "--trajectory", "text", "--layers", "full", "--drafter", "oracle"])
    trace = load_trace(out)
    assert ids[96:103] == trace.token.tolist()
    assert "token ids" == trace.meta["text"]["form"]
    assert "--drafter oracle" in trace.meta["recording"]["command"]
    command[command.index("--tokens")] = "--chats"
    (tmp_path / "ids.json").write_text('[{"role": "user", "content": "the lamp"}]')
    assert 3 == main([*command, "--force"])
    assert "no chat form" in capsys.readouterr().err


def test_one_prompt_is_asked_for(model_folder, text_file, tmp_path, capsys):
    """No prompt, two prompts, a question about token ids, a list that is none: usage errors."""
    folder, out = model_folder("llama"), tmp_path / "tiny.npz"
    for more, problem in (
        ([], "one of --text"),
        (["--text", str(text_file), "--tokens", str(text_file)], "one of --text"),
        (["--tokens", str(text_file), "--question", "why"], "goes with --text"),
        (["--text", str(text_file), "--block-size", "8,x"], "no list of block sizes"),
        (["--text", str(text_file), "--steps", "0"], "steps: 0 is out of range"),
        (["--text", str(text_file), "--block-size", "8,8"], "names a size twice"),
    ):
        assert 2 == main(["record", str(folder), "--out", str(out), *more])
        assert problem in capsys.readouterr().err


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


def test_an_id_that_the_model_lacks_is_named(model_folder, tmp_path, capsys):
    """The file, the place in it, the id and the range, not the model's tokenizer."""
    path, out = tmp_path / "ids.json", tmp_path / "tiny.npz"
    path.write_text(json.dumps([7] * 96 + [99_999_999] + [7] * 96))
    command = arguments(model_folder("llama"), path, out, "--quiet", "--trajectory", "text")
    command[command.index("--text")] = "--tokens"
    assert 3 == main(command)
    error = capsys.readouterr().err
    assert f"{path}: id 97: 99999999 is no token of the model; use 0 to 49\n" in error
    assert not out.exists()


@pytest.mark.parametrize(
    ("option", "content", "problem"),
    [
        ("--tokens", "1 x", "'x' is no token id"),
        ("--chats", "{}", "holds no chat"),
        ("--text", "", "holds no text"),
    ],
)
def test_prompts_are_read_before_the_model(tmp_path, capsys, option, content, problem):
    """A mistake in the prompt's file is told at once: the model need not exist."""
    path = tmp_path / "prompt"
    path.write_text(content)
    command = arguments("no-model", path, tmp_path / "tiny.npz")
    command[command.index("--text")] = option
    assert 3 == main(command)
    error = capsys.readouterr().err
    assert str(path) in error
    assert problem in error


def test_bad_inputs_end_in_one_line(model_folder, text_file, tmp_path, capsys):
    """A text that is too short, a missing model, a bad option: exit 3, no trace, no traceback."""
    out = tmp_path / "tiny.npz"
    folder = model_folder("llama")
    for model, more, problem in (
        (folder, ["--prompt-tokens", "900"], "150 tokens"),
        (folder, ["--question", "why?"], "no chat form"),
        (folder, ["--layers", "9"], "layers 0 to 4"),
        ("no-model", [], "no such file"),
    ):
        assert 3 == main([*arguments(model, text_file, out, *more), "--quiet"])
        error = capsys.readouterr().err
        assert problem in error
        assert 1 == len(error.splitlines())
    assert not out.exists()
