"""Loading models: folders and GGUF files that work, and all that must be refused cleanly."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace

import numpy as np
import pytest

from oasis_sim.errors import GpuUnavailable, InputError, UsageError
from oasis_sim.record import Prompt, RecordOptions, load_recorded_model, record
from oasis_sim.record.backend import require_backend
from oasis_sim.record.supported import check_attention

torch = pytest.importorskip("torch", reason="recording needs the extra 'record'")

LOOSE = {"block_tokens": 8, "draft_budget_tokens": 24, "max_perplexity": 1e9, "steps": 6}


def test_what_is_no_model_is_refused(tmp_path):
    """Missing places, empty folders, other files and names are an InputError."""
    other = tmp_path / "model.gguf"
    other.write_bytes(b"PK\x03\x04 not a model")
    empty = tmp_path / "empty"
    empty.mkdir()
    for path, problem in (
        (tmp_path / "none", "no such file"),
        (empty, "no config.json"),
        (other, "not a GGUF file"),
    ):
        with pytest.raises(InputError, match=problem):
            load_recorded_model(path)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("{", "not valid JSON"),
        ("[]", "names no model type"),
        ('{"model_type": "deepseek_v3", "kv_lora_rank": 512}', "latent attention"),
        ('{"model_type": "t5", "is_encoder_decoder": true}', "encoder-decoder"),
        ('{"model_type": "gemma2", "attn_logit_softcapping": 50.0}', "caps its attention"),
        ('{"model_type": "llama4", "text_config": {"attention_chunk_size": 8192}}', "chunks"),
        ('{"model_type": "gemma3n", "num_kv_shared_layers": 10}', "share keys and values"),
        ('{"model_type": "qwen3_next", "layer_types": ["linear_attention"]}', "linear_attention"),
        ('{"model_type": "llama"}', "no .safetensors"),
    ],
)
def test_folders_that_cannot_be_recorded_are_refused(tmp_path, config, problem):
    """The configuration alone decides, with the reason, before any weight is read."""
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(InputError, match=problem):
        load_recorded_model(tmp_path)


def test_broken_weights_are_refused(model_folder, tmp_path):
    """A folder with a damaged weight file is an InputError that names the folder."""
    for file in model_folder("llama").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(InputError, match="cannot be loaded") as caught:
        load_recorded_model(tmp_path)
    assert str(tmp_path) == caught.value.file


def test_dtype_and_threads_are_checked(model_folder):
    """Unknown number formats and impossible thread counts are an InputError."""
    with pytest.raises(InputError, match="dtype"):
        load_recorded_model(model_folder("llama"), dtype="int4")
    with pytest.raises(InputError, match="threads"):
        load_recorded_model(model_folder("llama"), threads=0)


def test_missing_packages_are_named_with_the_extra(monkeypatch):
    """Without torch the message says what to install, with a broken one what is wrong."""
    extra = r"pip install -e '\.\[record\]'"
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UsageError, match=f"needs gguf: {extra}"):
        require_backend(gguf=True)
    require_backend(gguf=False)

    def broken(name: str):
        raise ImportError("no such symbol")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(UsageError, match=rf"torch cannot be imported \(no such symbol\): {extra}"):
        require_backend(gguf=False)


def test_attention_check_wants_attention_heads():
    """A whole configuration passes with attention heads and fails without (state-space models)."""
    facts = {"model_type": "llama", "kv_lora_rank": None, "num_attention_heads": 4}
    check_attention(facts, "here")
    check_attention({"model_type": "gemma3", "text_config": facts}, "here")
    with pytest.raises(InputError, match="no attention heads"):
        check_attention({"model_type": "mamba", "state_size": 16}, "here")


def test_devices_are_checked(model_folder):
    """What is no device is an InputError; a GPU that is not there ends with exit code 5."""
    for device in ("tpu", "cuda:", "cuda:1x", ""):
        with pytest.raises(InputError, match="unknown device"):
            load_recorded_model(model_folder("llama"), device=device)
    with pytest.raises(GpuUnavailable, match="cuda:999"):
        load_recorded_model(model_folder("llama"), device="cuda:999")


def test_chunks_do_not_change_the_trace(tiny_model, tiny_prompt):
    """Prefill in chunks of any size gives the same orders and masses."""
    model = tiny_model("llama")
    prompt = tiny_prompt(model)
    traces = [
        record(
            model, prompt, RecordOptions(**LOOSE, ignore_eos=True, chunk_tokens=size), name="tiny"
        ).trace
        for size in (1, 17, 96, 500)
    ]
    for other in traces[1:]:
        np.testing.assert_array_equal(traces[0].use_order, other.use_order)
        np.testing.assert_allclose(traces[0].mass.astype(int), other.mass.astype(int), atol=1)


def test_recording_again_gives_the_same_trace(tiny_model, tiny_prompt):
    """A sampled trajectory depends on its seed only."""
    model = tiny_model("llama")
    prompt = tiny_prompt(model)
    options = RecordOptions(**LOOSE, trajectory="sample", seed=3, ignore_eos=True)
    first, second = (record(model, prompt, options, name="tiny").trace for _ in range(2))
    other = record(model, prompt, replace(options, seed=4), name="tiny").trace
    np.testing.assert_array_equal(first.token, second.token)
    np.testing.assert_array_equal(first.use_order, second.use_order)
    assert first.token.tolist() != other.token.tolist()
    assert {"source": "sample", "temperature": 0.8, "seed": 3} == first.meta["text"]["trajectory"]


def test_a_model_that_does_not_understand_its_prompt_is_refused(tiny_model, tiny_prompt):
    """Random weights fail the perplexity check; the message says how far off they are."""
    model = tiny_model("llama")
    options = RecordOptions(**{**LOOSE, "max_perplexity": 20.0})
    with pytest.raises(InputError, match=r"perplexity \d"):
        record(model, tiny_prompt(model), options, name="tiny")


def test_a_model_of_nan_is_refused(tiny_model, tiny_prompt):
    """Weights that are no numbers fail the perplexity check, not later."""
    model = tiny_model("llama")
    weight = model.module.model.layers[2].mlp.down_proj.weight
    kept = weight.detach().clone()
    try:
        weight.data[0, 0] = torch.nan
        with pytest.raises(InputError, match="perplexity"):
            record(model, tiny_prompt(model), RecordOptions(**LOOSE), name="tiny")
    finally:
        weight.data.copy_(kept)


def test_the_end_token_ends_the_trace(tiny_model, tiny_prompt):
    """A trace ends before the end token is processed; too early an end is refused."""
    model = tiny_model("llama")
    prompt = tiny_prompt(model)
    options = RecordOptions(**LOOSE)
    tokens = record(replace(model, end_tokens=()), prompt, options, name="tiny").trace.token
    late = next(i for i, token in enumerate(tokens) if i >= 2 and token not in tokens[:i])
    ends = replace(model, end_tokens=(int(tokens[late]),))
    trace = record(ends, prompt, options, name="tiny").trace
    assert tokens[: late + 1].tolist() == trace.token.tolist()
    assert late == trace.steps == trace.meta["steps"]
    with pytest.raises(InputError, match="ended its text after 0 steps"):
        record(replace(model, end_tokens=(int(tokens[0]),)), prompt, options, name="tiny")
    ignoring = replace(options, ignore_eos=True)
    endless = record(replace(model, end_tokens=(int(tokens[0]),)), prompt, ignoring, name="tiny")
    assert int(tokens[0]) not in endless.trace.token
    assert options.steps == endless.trace.steps


def test_options_that_do_not_fit_the_prompt_are_refused(tiny_model, tiny_prompt):
    """Too long for the model, shorter than a block, no continuation, foreign tokens."""
    model = tiny_model("llama")
    prompt = tiny_prompt(model)
    cases = [
        (prompt, {"steps": 417}, "positions"),
        (Prompt(prompt.tokens[:7], (), prompt.header), {}, "fewer than one block"),
        (prompt, {"trajectory": "text"}, "does not go on"),
        (Prompt((*prompt.tokens, model.vocab), (), prompt.header), {}, "model lacks"),
        (prompt, {"layers": "5"}, "layers 0 to 4"),
        (prompt, {"drafters": ("skip0-1",)}, "cannot be left out"),
        (prompt, {"drafters": ("skip", "skip2-2")}, "names a drafter twice"),
    ]
    for given, changes, problem in cases:
        with pytest.raises(InputError, match=problem):
            record(model, given, RecordOptions(**{**LOOSE, **changes}), name="tiny")


def test_stored_blocks_and_layers_are_parts_of_the_whole(tiny_model, tiny_prompt):
    """Fewer layers and shorter orders are the same numbers; the header says which."""
    model = tiny_model("llama")
    prompt = tiny_prompt(model)
    options = RecordOptions(**LOOSE, ignore_eos=True)
    whole = record(model, prompt, options, name="tiny").trace
    part = record(
        model, prompt, replace(options, layers="1-4:3", stored_blocks=5), name="tiny"
    ).trace
    np.testing.assert_array_equal(whole.use_order[:, [1, 4], :, :5], part.use_order)
    np.testing.assert_array_equal(whole.mass[:, [1, 4]], part.mass)
    for drafter in whole.drafters:
        expected = whole.pred_order[drafter][:, [1, 4], :, :5]
        np.testing.assert_array_equal(expected, part.pred_order[drafter])
    assert ([1, 4], 5) == (part.meta["layer_ids"], part.meta["stored_blocks"])


def test_bfloat16_models_are_recorded(model_folder, tiny_prompt):
    """Half-precision weights give a whole trace, and the header says so."""
    model = load_recorded_model(model_folder("llama"), dtype="bfloat16")
    trace = record(
        model, tiny_prompt(model), RecordOptions(**LOOSE, ignore_eos=True), name="tiny"
    ).trace
    assert ("bfloat16", 6) == (trace.meta["model"]["dtype"], trace.steps)
