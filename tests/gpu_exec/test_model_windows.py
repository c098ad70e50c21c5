"""A sparse decode through the kernels of a model with sliding windows and 256 dimensions."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="decoding needs the extra 'record'")

import torch

from gpu_exec.model.backend import PagedBackend
from gpu_exec.model.checked import CheckedKernels
from gpu_exec.model.host_kernels import HostKernels
from gpu_exec.model.kernels import CudaKernels
from oasis_sim.quality.start import Start
from oasis_sim.record import RecordOptions, load_recorded_model
from oasis_sim.record.progress import no_progress
from oasis_sim.record.trajectory import follow
from tests.gpu_exec.gpu_cases import missing_gpu
from tests.gpu_exec.test_model_rows import ALWAYS, BLOCK, PROMPT, STEPS, needs_compiler, run
from tests.record.conftest import model_folder, tiny_prompt

__all__ = ["model_folder", "tiny_prompt"]

no_gpu = pytest.mark.skipif(missing_gpu() is not None, reason=f"{missing_gpu()}")


@needs_compiler
@pytest.mark.parametrize("side", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, no_gpu])])
def test_full_layers_are_paged_and_windows_are_not(model_folder, tiny_prompt, side):
    """Counts of the reference, nearly; every call of the full layers is plain arithmetic."""
    checked = []

    def make(shape, device):
        inner = (HostKernels if side == "cpu" else CudaKernels)(shape, device)
        chosen = torch.tensor([each.rule.chosen_blocks for each in ALWAYS])
        checked.append(CheckedKernels(inner, shape, device, chosen))
        return checked[-1]

    options = RecordOptions(
        steps=STEPS, trajectory="text", draft_budget_tokens=4 * BLOCK, max_perplexity=1e9
    )
    logs = []
    for device in ("cpu", side):
        model = load_recorded_model(model_folder("gemma3_wide"), device=device)
        with torch.inference_mode():
            prompt = tiny_prompt(model, PROMPT, STEPS + 1)
            path = follow(model, prompt, options, no_progress)
            start = Start.after_prompt(path, BLOCK, kv_16bit=True)
        paged = PagedBackend("checked", model.query_heads, make)
        _, loops = run(model, path, start, ALWAYS, paged if logs else None)
        logs.append(loops.logs)
    for one, other in zip(*logs, strict=True):
        for name in ("needed", "admitted", "overlap"):
            ours, theirs = np.stack(getattr(one, name)), np.stack(getattr(other, name))
            assert np.mean(ours == theirs) > 0.9, name
    tally = checked[0].tally
    assert (0, 0, 0) == (tally.selection_differs, tally.units_wrong, tally.appended_wrong)
    assert tally.output_error < 0.02
    assert STEPS * len(start.full_layers) * len(ALWAYS) == tally.selections
    assert tally.units_gathered > 0
