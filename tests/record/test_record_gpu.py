"""Recordings on a GPU beside those on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from oasis_sim.record import RecordOptions, load_recorded_model, record

torch = pytest.importorskip("torch", reason="recording needs the extra 'record'")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.mark.parametrize("kind", ["llama", "gemma3_text"])
def test_gpu_recordings_agree_with_the_cpu(kind, model_folder, tiny_model, tiny_prompt):
    """Masses agree to 1e-4; orders, drafts and trajectory differ only where rounding decides."""
    model = tiny_model(kind)
    prompt = tiny_prompt(model, follow=21)
    drafters = ("skip", "ngram", "oracle", f"model:{model_folder('draft')}")
    options = RecordOptions(
        steps=20,
        trajectory="text",
        block_tokens=8,
        draft_budget_tokens=48,
        chunk_tokens=29,
        drafters=drafters,
        max_perplexity=1e9,
    )
    torch.backends.cuda.matmul.allow_tf32 = False
    first = record(model, prompt, options, name="tiny")
    second = record(
        load_recorded_model(model_folder(kind), device="cuda"), prompt, options, name="tiny"
    )
    np.testing.assert_allclose(first.exact_mass, second.exact_mass, atol=1e-4)
    assert "cuda" == second.trace.meta["recording"]["device"]
    assert (first.trace.use_order == second.trace.use_order).mean() > 0.995
    for name in first.trace.drafters:
        same = first.trace.pred_order[name] == second.trace.pred_order[name]
        drafts = first.trace.draft_token[name] == second.trace.draft_token[name]
        assert drafts.mean() >= 0.95
        assert same[drafts].mean() > 0.98
