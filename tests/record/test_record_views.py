"""What the recorder sees of a model: windows, perplexity, memory; and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oasis_sim.errors import InputError
from oasis_sim.record import RecordOptions, load_recorded_model, record
from oasis_sim.residency.stats import trace_stats

torch = pytest.importorskip("torch", reason="recording needs the extra 'record'")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

LOOSE = {"block_tokens": 8, "draft_budget_tokens": 24, "max_perplexity": 1e9, "steps": 6}


@pytest.mark.parametrize("kind", ["granite", "gpt_oss", "bert"])
def test_models_that_compute_otherwise_are_refused(kind, tiny_model, tiny_prompt):
    """Scaled logits, sinks beside the scores, sight of later tokens: the recording ends."""
    model = tiny_model(kind)
    with pytest.raises(InputError, match="in a way that the recorder does not see"):
        record(model, tiny_prompt(model), RecordOptions(**LOOSE), name="tiny")


def test_models_that_hide_their_attention_are_refused(model_folder):
    """Falcon attends in code of its own, which the library says by a bare key."""
    with pytest.raises(InputError, match="hides its attention from the recorder"):
        load_recorded_model(model_folder("falcon"))


def test_configurations_that_name_other_heads_are_refused(tiny_model, tiny_prompt):
    """OPT ignores the KV heads of its configuration: the header would be wrong."""
    model = tiny_model("opt")
    with pytest.raises(InputError, match="keeps keys of 4 KV heads, its configuration says 2"):
        record(model, tiny_prompt(model), RecordOptions(**LOOSE), name="tiny")


def test_what_the_library_raises_is_one_message(tiny_model, tiny_prompt, monkeypatch):
    """A foreign model's code may fail in any way: the message says how."""
    model = tiny_model("llama")

    def fail(*_: object, **__: object) -> None:
        raise KeyError("attention_bias")

    monkeypatch.setattr(model.module.model.layers[1].mlp, "forward", fail)
    with pytest.raises(InputError, match=r"cannot be run by the recorder \(KeyError"):
        record(model, tiny_prompt(model), RecordOptions(**LOOSE), name="tiny")


def test_layers_of_a_full_context_can_be_chosen(tiny_model, tiny_prompt):
    """The word full keeps the layers without a window; where none is, it is refused."""
    model = tiny_model("gemma3_text")
    options = RecordOptions(**LOOSE, ignore_eos=True, layers="full")
    trace = record(model, tiny_prompt(model), options, name="tiny").trace
    assert ([2, 4], [None, None]) == (trace.meta["layer_ids"], trace.meta["layer_span"])
    windows = tiny_model("mistral")
    with pytest.raises(InputError, match="sliding window only"):
        record(windows, tiny_prompt(windows), options, name="tiny")


def test_averages_leave_sliding_windows_out(tiny_model, tiny_prompt):
    """Statistics of a whole recording are those of its full-attention layers."""
    model = tiny_model("gemma3_text")
    options = RecordOptions(**LOOSE, ignore_eos=True)
    prompt = tiny_prompt(model)
    whole = record(model, prompt, options, name="tiny").trace
    full = record(model, prompt, replace(options, layers="full"), name="tiny").trace
    assert [41, 41, None, 41, None] == whole.meta["layer_span"]
    assert trace_stats(full, [48], [1.0], ["draft"]) == trace_stats(whole, [48], [1.0], ["draft"])


def test_perplexity_is_judged_early(tiny_model, tiny_prompt, monkeypatch):
    """A long prompt is judged by its first tokens, before the rest is read."""
    from oasis_sim.record import prefill

    monkeypatch.setattr(prefill, "_JUDGED_TOKENS", 40)
    model = tiny_model("llama")
    options = RecordOptions(**LOOSE, ignore_eos=True, chunk_tokens=16)
    long = record(model, tiny_prompt(model, 96), options, name="tiny").trace
    short = record(model, tiny_prompt(model, 40), options, name="tiny").trace
    assert long.meta["text"]["perplexity"] == short.meta["text"]["perplexity"]
    read = []
    with pytest.raises(InputError, match="perplexity"):
        record(
            model,
            tiny_prompt(model, 96),
            replace(options, max_perplexity=2.0),
            name="tiny",
            progress=lambda stage, done, total: read.append(done),
        )
    assert 32 == max(read)


class Largest(TorchDispatchMode):
    """Watch the largest tensor that any operation makes, in elements."""

    def __init__(self) -> None:
        """Start at nothing."""
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run the operation and look at what came out."""
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, tuple) else (out,):
            if isinstance(each, torch.Tensor):
                self.elements = max(self.elements, each.numel())
        return out


def test_prefill_makes_no_tensor_larger_than_a_chunk_needs(tiny_model, tiny_prompt):
    """The largest tensor is the mask of one chunk over the context, never of all over all."""
    model = tiny_model("llama")
    prompt = tiny_prompt(model, 448)
    options = RecordOptions(**LOOSE, ignore_eos=True, chunk_tokens=16, drafters=("ngram",))
    with Largest() as watch:
        record(model, prompt, options, name="tiny")
    # Keys of a layer (2 heads, 16 dimensions), or a probe of 64 tokens by eager attention.
    context = 448 + options.steps
    assert watch.elements <= max(2 * 16 * context, 16 * context * 4, 4 * 64 * 64, 64 * 96 * 4)
    assert watch.elements < 448 * 448
