"""Another model as the drafter, and the oracle."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from oasis_sim.errors import InputError
from oasis_sim.record import RecordOptions, record

torch = pytest.importorskip("torch", reason="recording needs the extra 'record'")
reference = pytest.importorskip("tests.record.reference", reason="needs the extra 'record'")

STEPS = 20
PROMPT = 96


def options(*drafters: str, **changes) -> RecordOptions:
    """Return options for tiny models that follow a given text."""
    base = RecordOptions(
        steps=STEPS,
        trajectory="text",
        block_tokens=8,
        draft_budget_tokens=512,
        drafters=drafters,
        max_perplexity=1e9,
    )
    return replace(base, **changes)


def test_oracle_rows_with_the_whole_context_are_the_next_true_rows(tiny_model, tiny_prompt):
    """The true next token over all blocks orders as the next step does, up to rounding."""
    model = tiny_model("qwen3")
    trace = record(
        model, tiny_prompt(model, follow=STEPS + 1), options("oracle"), name="tiny"
    ).trace
    assert trace.token[1:].tolist() == trace.draft_token["oracle"].tolist()
    assert 1.0 == trace.meta["drafters"]["oracle"]["accepted"]
    same = trace.pred_order["oracle"][:-1] == trace.use_order[1:]
    assert same.mean() > 0.999


def test_another_model_drafts_its_likeliest_tokens(
    model_folder, tiny_model, tiny_prompt, monkeypatch
):
    """Drafts are the other model's greedy tokens on the same text, however it is chunked."""
    from oasis_sim.record import draft_model

    monkeypatch.setattr(draft_model, "_CHUNK_TOKENS", 37)
    model = tiny_model("llama")
    prompt = tiny_prompt(model, follow=STEPS + 1)
    trace = record(model, prompt, options(f"model:{model_folder('draft')}"), name="tiny").trace
    (name,) = trace.drafters
    assert name.startswith("model-tiny-draft")
    logits, _ = reference.EagerModel(model_folder("draft")).run(
        [*prompt.tokens, *trace.token[:-1].tolist()]
    )
    assert logits[PROMPT:].argmax(axis=-1).tolist() == trace.draft_token[name].tolist()
    about = trace.meta["drafters"][name]["model"]
    assert (2, 64) == (about["layers"], len(about["sha256"]))


def test_draft_models_that_do_not_fit_are_refused(model_folder, tiny_model, tiny_prompt, tmp_path):
    """Another vocabulary, a context that is too short, a missing folder: one clear message."""
    model = tiny_model("llama")
    prompt = tiny_prompt(model, follow=STEPS + 1)
    for file in model_folder("draft").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    words = json.loads((tmp_path / "tokenizer.json").read_text())
    vocab = words["model"]["vocab"]
    vocab["lamp"], vocab["light"] = vocab["light"], vocab["lamp"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(words))
    with pytest.raises(InputError, match="another vocabulary"):
        record(model, prompt, options(f"model:{tmp_path}"), name="tiny")
    (tmp_path / "tokenizer.json").write_bytes(
        (model_folder("draft") / "tokenizer.json").read_bytes()
    )
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 100}))
    with pytest.raises(InputError, match="reads 100 tokens at most"):
        record(model, prompt, options(f"model:{tmp_path}"), name="tiny")
    with pytest.raises(InputError, match="no such file"):
        record(model, prompt, options(f"model:{tmp_path / 'none'}"), name="tiny")
    with pytest.raises(InputError, match="unknown drafter"):
        record(model, prompt, options("model:"), name="tiny")
