"""A model's sparse decode by the compiled kernels, against the reference and plain arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="decoding needs the extra 'record'")

import torch

from gpu_exec.model.backend import PagedBackend
from gpu_exec.model.checked import CheckedKernels
from gpu_exec.model.kernels import CudaKernels
from oasis_sim.quality.loop import FullLoops
from oasis_sim.quality.start import Start
from oasis_sim.record import RecordOptions, load_recorded_model
from oasis_sim.record.progress import no_progress
from oasis_sim.record.trajectory import follow
from tests.gpu_exec.gpu_cases import needs_gpu
from tests.gpu_exec.test_model_rows import BLOCK, PLANS, PROMPT, STEPS, run
from tests.record.conftest import model_folder, tiny_model, tiny_prompt

__all__ = ["model_folder", "tiny_model", "tiny_prompt"]

pytestmark = needs_gpu


@pytest.fixture(scope="module")
def on_gpu(model_folder):
    """Return the tiny Llama model on the GPU."""
    return load_recorded_model(model_folder("llama"), device="cuda")


def begin(model, tiny_prompt, block_tokens: int = BLOCK):
    """Return a trajectory and the state after its prompt."""
    options = RecordOptions(
        steps=STEPS,
        trajectory="text",
        block_tokens=block_tokens,
        draft_budget_tokens=4 * block_tokens,
        max_perplexity=1e9,
    )
    with torch.inference_mode():
        path = follow(model, tiny_prompt(model, PROMPT, STEPS + 1), options, no_progress)
        return path, Start.after_prompt(path, block_tokens, kv_16bit=True)


def test_every_call_is_plain_arithmetic(on_gpu, tiny_prompt):
    """Scores, selections, gathered units and outputs of every step, layer and row."""
    checked = []

    def make(shape, device):
        chosen = torch.tensor([each.rule.chosen_blocks for each in PLANS])
        inner = CudaKernels(shape, device)
        checked.append(CheckedKernels(inner, shape, device, chosen))
        return checked[-1]

    path, start = begin(on_gpu, tiny_prompt)
    run(on_gpu, path, start, PLANS, PagedBackend("checked", on_gpu.query_heads, make))
    tally = checked[0].tally
    assert (0, 0, 0) == (tally.selection_differs, tally.units_wrong, tally.appended_wrong)
    assert tally.score_error < 1e-5
    assert tally.exchanged_gap < 1e-5
    assert tally.output_error < 0.02
    assert tally.units_gathered > 0


def test_the_gpu_says_what_the_reference_says(on_gpu, tiny_model, tiny_prompt):
    """Nearly the same text and counts as the reference on the CPU; bytes are those admitted."""
    model = tiny_model("llama")
    path, start = begin(model, tiny_prompt)
    expected, reference = run(model, path, start, PLANS)
    path, start = begin(on_gpu, tiny_prompt)
    backend = PagedBackend("gpu", on_gpu.query_heads)
    found, paged = run(on_gpu, path, start, PLANS, backend)
    shares = torch.log_softmax(expected.double(), -1), torch.log_softmax(found.double().cpu(), -1)
    divergence = (shares[0].exp() * (shares[0] - shares[1])).sum(-1).mean(0)
    assert float(divergence.median()) < 0.01
    for one, other in zip(reference.logs, paged.logs, strict=True):
        for name in ("needed", "admitted", "overlap"):
            ours, theirs = np.stack(getattr(one, name)), np.stack(getattr(other, name))
            assert np.mean(ours == theirs) > 0.9, name
    admitted = sum(int(np.stack(log.admitted).sum()) for log in paged.logs)
    first = sum(each.rule.chosen_blocks for each in PLANS) * 2 * 5
    assert backend.kernels[0].moved_bytes == (admitted + first) * BLOCK * 256


@pytest.mark.parametrize("block_tokens", [16, 32])
def test_full_attention_over_pages(on_gpu, tiny_prompt, block_tokens):
    """Every block resident, in order: the reference's logits up to 16-bit rounding."""
    path, start = begin(on_gpu, tiny_prompt, block_tokens)
    with torch.inference_mode():
        paged = FullLoops(on_gpu, start, 2, backend=PagedBackend("gpu", on_gpu.query_heads))
        whole = FullLoops(on_gpu, start, 2)
        for token in path.tokens[path.prompt_tokens : -1]:
            found, expected = paged.step([token, 3]), whole.step([token, 3])
            assert torch.allclose(found, expected, atol=0.05 * float(expected.abs().max()))
