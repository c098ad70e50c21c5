"""A recording that is interrupted goes on where it was, and gives the same bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oasis_sim.errors import InputError
from oasis_sim.record import RecordOptions, record_all
from oasis_sim.trace import save_trace

torch = pytest.importorskip("torch", reason="recording needs the extra 'record'")

OPTIONS = RecordOptions(
    steps=40,
    trajectory="sample",
    seed=3,
    ignore_eos=True,
    block_tokens=8,
    draft_budget_tokens=48,
    chunk_tokens=29,
    drafters=("skip", "ngram"),
    max_perplexity=1e9,
)
NAMES = {8: "tiny-b8", 16: "tiny-b16"}


class Killed(Exception):
    """Stand for the end of the process."""


def killer(stage: str, done: int):
    """Return a progress callback that ends the recording at a place."""

    def progress(now: str, parts: int, total: int) -> None:
        if now.startswith(stage) and parts >= done:
            raise Killed

    return progress


def write(model, prompt, folder, **settings) -> list[bytes]:
    """Record both block sizes; return the files' bytes."""
    found = []
    for result in record_all(model, prompt, OPTIONS, names=NAMES, command="x", **settings):
        path = folder / f"{result.trace.name}.npz"
        save_trace(result.trace, path)
        found.append(path.read_bytes())
    return found


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """Make the draft rows several batches."""
    from oasis_sim.record import rows

    monkeypatch.setattr(rows, "_ROWS", 16)


@pytest.mark.parametrize("kind", ["llama", "gemma3_text"])
def test_interrupted_recordings_end_in_the_same_bytes(kind, tiny_model, tiny_prompt, tmp_path):
    """Killed in every stage, one after the other, the files are those of an undisturbed run."""
    model = tiny_model(kind)
    prompt = tiny_prompt(model)
    expected = write(model, prompt, tmp_path)
    kept = tmp_path / "kept"
    places = [
        ("prefill", 58),
        ("decode", 0),
        ("decode", 20),
        ("draft rows of skip2-2, blocks of 8", 16),
        ("draft rows of ngram, blocks of 8", 0),
        ("draft rows of ngram, blocks of 16", 32),
    ]
    for stage, done in places:
        with pytest.raises(Killed):
            write(model, prompt, tmp_path, checkpoint=kept, progress=killer(stage, done))
    parts = {path.name: path.stat().st_mtime_ns for path in kept.iterdir()}
    seen = []

    def watch(stage: str, done: int, total: int) -> None:
        seen.append((stage, done))

    assert expected == write(model, prompt, tmp_path, checkpoint=kept, progress=watch)
    assert ("decode", 3) not in seen  # nothing is decoded again
    assert len(parts) > 10
    assert not kept.exists()


def test_kept_parts_are_used_not_computed_again(tiny_model, tiny_prompt, tmp_path):
    """A part that was changed on disk shows in the trace: it is read, not computed."""
    from safetensors.torch import load_file, save_file

    model = tiny_model("llama")
    prompt = tiny_prompt(model)
    kept = tmp_path / "kept"
    with pytest.raises(Killed):
        write(model, prompt, tmp_path, checkpoint=kept, progress=killer("draft rows", 0))
    (path,) = kept.glob("decode-00000000*")
    part = load_file(path)
    part["tokens"][5] = 7
    save_file(part, path)
    result = next(record_all(model, prompt, OPTIONS, names=NAMES, checkpoint=kept))
    assert 7 == result.trace.token[6]


def test_checkpoints_of_other_recordings_are_refused(tiny_model, tiny_prompt, tmp_path):
    """Another seed, prompt or block size, a folder of something else, a damaged part."""
    model = tiny_model("llama")
    prompt = tiny_prompt(model)
    kept = tmp_path / "kept"

    def begin(options=OPTIONS, given=prompt, names=NAMES, folder=kept):
        next(record_all(model, given, options, names=names, checkpoint=folder))

    with pytest.raises(Killed):
        write(model, prompt, tmp_path, checkpoint=kept, progress=killer("decode", 0))
    for changes in (
        {"options": replace(OPTIONS, seed=4)},
        {"given": tiny_prompt(model, 90)},
        {"names": {8: "tiny"}},
    ):
        with pytest.raises(InputError, match="another recording"):
            begin(**changes)
    for path in kept.glob("prefill-00000029*"):
        path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match="damaged part"):
        begin()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="neither empty nor a checkpoint"):
        begin(folder=tmp_path / "mine")
    with pytest.raises(InputError, match="cannot be used"):
        begin(folder=tmp_path / "file" / "below")
