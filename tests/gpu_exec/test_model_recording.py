"""A recording whose decoded rows go through the kernels, beside the library's attention.

The kernels' work is done on the CPU here; with a Hopper GPU the compiled kernels run as well.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="recording needs the extra 'record'")

import torch

from gpu_exec.build import build_selection_for_cpu
from gpu_exec.model.checked import CheckedKernels
from gpu_exec.model.host_kernels import HostKernels
from gpu_exec.model.kernels import CudaKernels
from gpu_exec.model.recording import PagedRecording
from oasis_sim.errors import InputError
from oasis_sim.record import RecordOptions, load_recorded_model, record_all
from oasis_sim.record.checkpoint import Parts
from oasis_sim.record.drafters import SkipDrafter
from oasis_sim.record.progress import no_progress
from oasis_sim.record.rows import DraftRows, true_orders
from oasis_sim.record.trajectory import follow
from oasis_sim.trace import NO_BLOCK
from tests.gpu_exec.gpu_cases import missing_gpu
from tests.record.conftest import model_folder, tiny_prompt

__all__ = ["model_folder", "tiny_prompt"]

pytestmark = pytest.mark.skipif(
    build_selection_for_cpu() is None, reason="no C++ compiler to build the selection core"
)
no_gpu = pytest.mark.skipif(missing_gpu() is not None, reason=f"{missing_gpu()}")
both_sides = pytest.mark.parametrize(
    "side", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, no_gpu])]
)
BLOCK, PROMPT, STEPS, CHOSEN = 16, 150, 20, 4
NAMES = ("skip1-2", "ngram")


def options(**changes) -> RecordOptions:
    """Return what is recorded."""
    defaults = {
        "steps": STEPS,
        "trajectory": "text",
        "block_tokens": BLOCK,
        "draft_budget_tokens": CHOSEN * BLOCK,
        "sink_blocks": 1,
        "recent_blocks": 2,
        "drafters": NAMES,
        "max_perplexity": 1e9,
    }
    return RecordOptions(**{**defaults, **changes})


def paged(model, checked=None) -> PagedRecording:
    """Return the backend, checked if a list is given for the kernels."""
    inner = HostKernels if model.device == "cpu" else CudaKernels

    def make(shape, device):
        kernels = inner(shape, device)
        if checked is None:
            return kernels
        counts = torch.full((shape.rows,), CHOSEN)
        checked.append(CheckedKernels(kernels, shape, device, counts))
        return checked[-1]

    return PagedRecording("kernels", model.query_heads, make)


@both_sides
@pytest.mark.parametrize("kind", ["llama", "gemma3_wide"])
def test_rows_by_the_kernels_are_those_of_the_library(model_folder, tiny_prompt, side, kind):
    """On the keys and queries of the same path: true orders alike, drafts' sets nearly so."""
    model = load_recorded_model(model_folder(kind), device=side)
    prompt, checked = tiny_prompt(model, PROMPT, STEPS + 1), []
    backend, layers = paged(model, checked), range(model.layers)
    with torch.inference_mode():
        path = follow(model, prompt, options(), no_progress, backend=backend)
        drafter = SkipDrafter("skip1-2", (1, 2))
        drafts = {
            "skip1-2": drafter.draft(model, path, no_progress),
            "same": list(path.tokens[-STEPS:]),
        }
        found, drafted = backend.orders(
            model, path, layers, drafts, options(), Parts(), no_progress
        )
        expected = true_orders(path, layers, options())
        rows = DraftRows(model, path, options(), layers, Parts())
        by_library = {name: rows.run(name, drafts[name], no_progress) for name in drafts}
    assert np.mean(found == expected) > 0.999
    for name, orders in drafted.items():
        assert orders.shape == by_library[name].shape
        assert ((orders == NO_BLOCK) == (by_library[name] == NO_BLOCK)).all()
        one, other = (each[..., :CHOSEN, None] for each in (orders, by_library[name]))
        assert np.mean((one == other.swapaxes(-1, -2)).any(axis=-1)) > 0.93
    tallies = [each.tally for each in checked]
    for tally in tallies:
        assert (0, 0, 0) == (tally.selection_differs, tally.units_wrong, tally.appended_wrong)
        assert tally.output_error < 0.02
        assert tally.exchanged_gap < 1e-5
    full = sum(span is None for span in path.spans)
    assert sum(tally.appended for tally in tallies) == STEPS * full * model.kv_heads * (1 + 2 * 2)
    assert sum(tally.selections for tally in tallies) == STEPS * full * 2
    assert min(tallies[-1].units_gathered, tallies[-1].targets) > 0


@both_sides
def test_an_interrupted_recording_goes_on(model_folder, tiny_prompt, side, tmp_path):
    """Killed while decoding, and again while the rows run: the same trace as without."""
    model = load_recorded_model(model_folder("llama"), device=side)
    prompt = tiny_prompt(model, PROMPT, STEPS + 1)

    class Stop(Exception):
        """Stand for a kill."""

    def stop_at(stage, at):
        def progress(name, done, total):
            if name.startswith(stage) and done == at:
                raise Stop

        return progress

    def run(progress=no_progress, checkpoint=None):
        settings = {"names": {BLOCK: "t"}, "backend": paged(model), "checkpoint": checkpoint}
        return next(record_all(model, prompt, options(), progress=progress, **settings)).trace

    for stage, at in (("decode", 17), ("rows by the kernels", 3)):
        with pytest.raises(Stop):
            run(stop_at(stage, at), tmp_path / "kept")
    found, expected = run(checkpoint=tmp_path / "kept"), run()
    assert np.array_equal(found.use_order, expected.use_order)
    assert np.array_equal(found.mass, expected.mass)
    for name in expected.pred_order:
        assert np.array_equal(found.pred_order[name], expected.pred_order[name])
    assert found.meta == expected.meta
    assert found.meta["recording"]["attention"] == "kernels"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"block_tokens": 8}, "multiple of 16"),
        ({"bound_join": "mean"}, "join heads by mean"),
    ],
)
def test_what_the_kernels_lack_is_refused(model_folder, tiny_prompt, changes, problem):
    """Before anything is computed, with what to do instead."""
    model = load_recorded_model(model_folder("llama"))
    with pytest.raises(InputError, match=problem):
        next(
            record_all(
                model,
                tiny_prompt(model, PROMPT, STEPS + 1),
                options(**changes),
                names={changes.get("block_tokens", BLOCK): "t"},
                backend=paged(model),
            )
        )
