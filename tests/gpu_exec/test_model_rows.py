"""A model's sparse decode over paged memory, against the reference: the same step by step.

The kernels' work is done on the CPU here (selection by the kernel's own text); with a Hopper GPU
the same tests run the compiled kernels.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="decoding needs the extra 'record'")

import torch

from gpu_exec.build import build_selection_for_cpu
from gpu_exec.model.backend import PagedBackend
from gpu_exec.model.checked import CheckedKernels
from gpu_exec.model.host_kernels import HostKernels
from gpu_exec.model.memory import LayerPages, packed
from gpu_exec.model.page import PageShape
from oasis_sim.errors import InputError
from oasis_sim.quality.backend import LoopPlan
from oasis_sim.quality.guess import GivenGuess, SkipGuess
from oasis_sim.quality.key_index import KeyIndex
from oasis_sim.quality.loop import ClosedLoops, FullLoops
from oasis_sim.quality.pools import RowPools
from oasis_sim.quality.start import Start
from oasis_sim.record import RecordOptions
from oasis_sim.record.progress import no_progress
from oasis_sim.record.trajectory import follow
from oasis_sim.residency import ResidencyRule
from tests.record.conftest import model_folder, tiny_model, tiny_prompt

__all__ = ["model_folder", "tiny_model", "tiny_prompt"]

BLOCK = 16
PROMPT = 150
STEPS = 24

needs_compiler = pytest.mark.skipif(
    build_selection_for_cpu() is None, reason="no C++ compiler to build the selection core"
)


@pytest.fixture(scope="module")
def model(tiny_model):
    """Return the tiny Llama model."""
    return tiny_model("llama")


@pytest.fixture(scope="module")
def path(model, tiny_prompt):
    """Return a trajectory after a prompt that ends inside a block."""
    options = RecordOptions(
        steps=STEPS,
        trajectory="text",
        block_tokens=BLOCK,
        draft_budget_tokens=4 * BLOCK,
        max_perplexity=1e9,
    )
    with torch.inference_mode():
        return follow(model, tiny_prompt(model, PROMPT, STEPS + 1), options, no_progress)


@pytest.fixture(scope="module")
def start(path):
    """Return the state after the prompt, in 16 bits."""
    return Start.after_prompt(path, BLOCK, kv_16bit=True)


def plan(
    predictor: str, chosen: int = 4, pool: int = 4, cap: int = 4, sink: int = 0, recent: int = 1
) -> LoopPlan:
    """Return a plan that the kernels can follow."""
    return LoopPlan(ResidencyRule(chosen, pool, cap, sink, recent, BLOCK), predictor)


PLANS = [
    plan("draft"),
    plan("previous", cap=1),
    plan("current"),
    plan("draft", chosen=3, pool=5, cap=2),
    plan("draft", cap=0),
]
ALWAYS = [
    plan("draft", chosen=3, pool=3, cap=2, sink=1, recent=3),
    plan("previous", chosen=2, pool=4, cap=1, sink=1, recent=3),
]


def run(model, path, start, plans, backend=None):
    """Decode the trajectory; return logits [T, R, V] and the logs."""
    with torch.inference_mode():
        guess = SkipGuess(model, (2,))
        loops = ClosedLoops(model, start, plans, guess, backend=backend, keep_orders=True)
        tokens = path.tokens[path.prompt_tokens : -1]
        logits = torch.stack([loops.step([token] * len(plans)) for token in tokens])
    return logits, loops


@needs_compiler
@pytest.mark.parametrize("plans", [PLANS, ALWAYS])
def test_paged_rows_are_those_of_the_reference(model, path, start, plans):
    """Nearly the same text; counts differ where scores are close, seldom."""
    backend = PagedBackend("host", model.query_heads, HostKernels)
    expected, reference = run(model, path, start, plans)
    found, paged = run(model, path, start, plans, backend)
    shares = torch.log_softmax(expected.double(), -1), torch.log_softmax(found.double(), -1)
    divergence = (shares[0].exp() * (shares[0] - shares[1])).sum(-1).mean(0)
    assert float(divergence.median()) < 0.01
    assert float(divergence.max()) < 0.05  # a block was exchanged for one of nearly its score
    for one, other in zip(reference.logs, paged.logs, strict=True):
        same = np.isclose(np.stack(one.mass), np.stack(other.mass), atol=0.01)
        assert np.mean(same) > 0.9
        for name in ("needed", "admitted", "overlap"):
            ours, theirs = np.stack(getattr(one, name)), np.stack(getattr(other, name))
            assert np.mean(ours == theirs) > 0.9, name
    assert (
        backend.kernels[0].moved_bytes
        == sum(int(np.stack(log.admitted).sum()) * BLOCK * 256 for log in paged.logs)
        + sum(each.rule.chosen_blocks for each in plans) * 2 * 5 * BLOCK * 256
    )


@needs_compiler
@pytest.mark.parametrize("plans", [PLANS, ALWAYS, [plan("current", sink=2)]])
def test_decisions_are_those_of_the_pools_for_the_same_scores(model, path, start, plans):
    """Replaying the scores of a paged run through the reference pools gives its every decision."""
    seen = []

    def watch(layer, position, scores, attended):
        seen.append((layer, position, scores.clone(), attended.clone()))

    _, loops = run(model, path, start, plans, PagedBackend("host", 4, HostKernels, watch))
    rules = [each.rule for each in plans]
    pools = {layer: RowPools(rules, start.kv_heads, start.blocks) for layer in start.full_layers}
    for layer, position, scores, attended in seen:
        order = torch.sort(scores, dim=-1, descending=True, stable=True).indices
        moved = pools[layer].advance(position, order.numpy(), order.numpy())
        assert attended.tolist() == moved.attended.tolist()
        step = position - PROMPT
        place = start.full_layers.index(layer)
        for row, log in enumerate(loops.logs):
            for name in ("needed", "admitted"):
                assert (
                    getattr(log, name)[step][place].tolist() == getattr(moved, name)[row].tolist()
                )


@needs_compiler
def test_every_call_is_checked_against_plain_arithmetic(model, path, start):
    """The checks find nothing on a sound machine, and count what they looked at."""
    checked = []

    def make(shape, device):
        chosen = torch.tensor([each.rule.chosen_blocks for each in PLANS])
        checked.append(CheckedKernels(HostKernels(shape), shape, device, chosen))
        return checked[-1]

    run(model, path, start, PLANS, PagedBackend("checked", model.query_heads, make))
    tally = checked[0].tally
    assert tally.score_error < 1e-5
    assert tally.output_error < 0.02
    assert tally.exchanged_gap < 1e-5
    assert (0, 0, 0) == (tally.selection_differs, tally.units_wrong, tally.appended_wrong)
    layers, rows = len(start.full_layers), len(PLANS)
    assert STEPS * layers * rows == tally.selections
    assert 2 * STEPS * layers * rows * 2 == tally.targets
    assert 2 * STEPS * layers * rows * 2 == tally.appended
    assert tally.units_gathered > 0


@needs_compiler
def test_the_checks_find_what_is_wrong(model, path, start):
    """A kernel that drops a unit, forgets a slot, or adds to scores and outputs is found."""

    class Broken(HostKernels):
        def gather(self, row, host, memory):
            super().gather(row, host, memory)
            memory[row.target[:1].long()] += 1.0

        def select(self, row, scores, position, step, cap):
            super().select(row, scores, position, step, cap)
            row.stamp[0, 0] += 1

        def scan(self, query, tiles, scores, position):
            super().scan(query, tiles, scores, position)
            scores[..., 0] += 100.0

        def attend(self, *arguments):
            return super().attend(*arguments) * 1.1

        def append(self, both, memory, tiles, position):
            super().append(both, memory, tiles, position)
            if tiles is not None:
                tiles += 1.0

    def make(shape, device):
        chosen = torch.tensor([each.rule.chosen_blocks for each in PLANS])
        checked.append(CheckedKernels(Broken(shape), shape, device, chosen))
        return checked[-1]

    checked: list[CheckedKernels] = []
    run(model, path, start, PLANS, PagedBackend("broken", model.query_heads, make))
    tally = checked[0].tally
    assert tally.score_error > 0.1
    assert tally.output_error > 0.09
    assert tally.exchanged_gap > 0.01
    assert tally.target_differs > 0
    assert tally.selection_differs == tally.selections
    assert tally.units_wrong > 0
    assert 2 * tally.appended_wrong == tally.appended


def test_full_attention_over_pages_is_full_attention(model, path, start):
    """Every block resident, in order: the reference's logits up to 16-bit rounding."""
    backend = PagedBackend("host", model.query_heads, HostKernels)
    with torch.inference_mode():
        paged = FullLoops(model, start, 2, backend=backend)
        whole = FullLoops(model, start, 2)
        for token in path.tokens[path.prompt_tokens : -1]:
            found, expected = paged.step([token, 3]), whole.step([token, 3])
            assert torch.allclose(found, expected, atol=0.05 * float(expected.abs().max()))


def test_units_hold_what_was_written():
    """Tokens one by one give the units that whole blocks give."""
    shape = PageShape(rows=2, heads=3, group=2, head_dim=64, block_tokens=32, blocks=4, slots=1)
    keys, values = torch.randn(2, 3, 32, 64)
    pages = LayerPages(shape, torch.device("cpu"))
    pages.fill_local(keys, values, 64)
    expected = packed(shape, keys, values)[:, 0]
    assert torch.equal(expected[None].expand(2, -1, -1), pages.local(1))
    assert not pages.local(0).any()


@needs_compiler
@pytest.mark.parametrize("recent", [2, 3])
def test_drafts_read_the_blocks_of_their_true_row(model, path, start, recent):
    """Also when the true row's token completes a block: none of the newest is replaced yet."""
    seen: dict[int, torch.Tensor] = {}

    class Watched(HostKernels):
        def attend(self, query, memory, table, counts, *rest):
            units = memory[
                torch.cat([row[:n] for row, n in zip(table, counts, strict=True)]).long()
            ]
            if len(query) == 1:
                seen[memory.data_ptr()] = units
            else:
                assert torch.equal(units, seen[memory.data_ptr()])
            return super().attend(query, memory, table, counts, *rest)

    plans = [plan("draft", chosen=3, pool=3, sink=1, recent=recent)]
    run(model, path, start, plans, PagedBackend("host", model.query_heads, Watched))
    assert len(seen) == len(start.full_layers)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"head_dim": 272}, "head dimension 272"),
        ({"head_dim": 256, "group": 9}, "9 query heads of 256 dimensions"),
        ({"block_tokens": 24}, "multiple of 16"),
        ({"group": 17}, "query heads per KV head"),
    ],
)
def test_shapes_that_the_kernels_lack_are_refused(changes, problem):
    """The reason is said, and what to do."""
    sizes = {"head_dim": 64, "block_tokens": 16, "group": 3, **changes}
    with pytest.raises(InputError, match=problem):
        PageShape(rows=1, heads=1, blocks=9, slots=4, **sizes)


def test_rules_that_the_kernels_lack_are_refused(start):
    """Shared caps, no recent block, and different sinks side by side are not decoded there."""
    backend = PagedBackend("host", 4, HostKernels)
    shared = LoopPlan(ResidencyRule(4, 4, 4, block_tokens=BLOCK, cap_over_heads=True), "draft")
    for plans in ([shared], [plan("draft", recent=0)], [plan("draft"), plan("draft", sink=1)]):
        with pytest.raises(InputError, match="do not do"):
            backend.sparse(start, plans)
    usual = plan("draft")
    for more in ({"index": KeyIndex("means")}, {"caps": (1,)}, {"correction_share": 0.2}):
        with pytest.raises(InputError, match="scans exact extreme keys"):
            backend.sparse(start, [usual, replace(usual, **more)])


def test_given_drafts_are_every_row_s():
    """Over a given trajectory all rows have its drafts."""

    class State:
        position = 12
        histories = ((1, 2), (1, 2))

    assert [8, 8] == GivenGuess((7, 9, 8), 10).guess(State())
