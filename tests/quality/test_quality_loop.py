"""The sparse decode against full attention, the residency core and the recorder."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="decoding needs the extra 'record'")

import torch

from oasis_sim.quality.backend import LoopPlan
from oasis_sim.quality.guess import NgramGuess, SkipGuess
from oasis_sim.quality.loop import ClosedLoops, FullLoops
from oasis_sim.quality.pools import RowPools
from oasis_sim.quality.start import Start
from oasis_sim.record import RecordOptions
from oasis_sim.record.attention import KeyValueStore
from oasis_sim.record.checkpoint import Parts
from oasis_sim.record.drafters import SkipDrafter
from oasis_sim.record.progress import no_progress
from oasis_sim.record.rows import DraftRows, true_mass, true_orders
from oasis_sim.record.trajectory import Trajectory, follow
from oasis_sim.residency import ResidencyRule
from oasis_sim.residency.rule import StepPath
from oasis_sim.residency.simulate import simulate_path
from oasis_sim.trace.mass import decode_mass, encode_mass

BLOCK = 8
STEPS = 20
SKIPPED = (2,)


def decode_options(chosen: int = 4, sink: int = 0, recent: int = 1) -> RecordOptions:
    """Return how the tiny models are decoded."""
    return RecordOptions(
        steps=STEPS,
        trajectory="text",
        block_tokens=BLOCK,
        draft_budget_tokens=chosen * BLOCK,
        sink_blocks=sink,
        recent_blocks=recent,
        drafters=("skip2-2",),
        max_perplexity=1e9,
    )


@pytest.fixture(scope="module")
def path_of(tiny_model, tiny_prompt):
    """Return a function from a model type to the tiny model's trajectory with full attention."""
    made: dict[str, Trajectory] = {}

    def trajectory(kind: str) -> Trajectory:
        if kind not in made:
            model = tiny_model(kind)
            prompt = tiny_prompt(model, follow=STEPS + 1)
            with torch.inference_mode():
                made[kind] = follow(model, prompt, decode_options(), no_progress)
        return made[kind]

    return trajectory


@pytest.fixture
def path(path_of):
    """Return the trajectory of the tiny Llama model with full attention."""
    return path_of("llama")


def decode(model, path, plans):
    """Run plans over a trajectory; return logits [T, R, V] and the logs."""
    with torch.inference_mode():
        start = Start.after_prompt(path, BLOCK)
        loops = ClosedLoops(model, start, plans, SkipGuess(model, SKIPPED), keep_orders=True)
        tokens = path.tokens[path.prompt_tokens : -1]
        logits = torch.stack([loops.step([token] * len(plans)) for token in tokens])
    return logits, loops.logs


def rule(chosen=4, pool=4, cap=4, sink=0, recent=1, **more) -> ResidencyRule:
    """Return a rule for the tiny models."""
    return ResidencyRule(chosen, pool, cap, sink, recent, BLOCK, **more)


@pytest.mark.parametrize(
    ("predictor", "recent"), [("draft", 1), ("current", 1), ("oracle", 1), ("previous", 2)]
)
def test_whole_budget_without_cap_is_full_attention(tiny_model, path, predictor, recent):
    """A budget of all blocks and no cap give the logits of full attention, bit for bit."""
    model = tiny_model("llama")
    plan = LoopPlan(rule(99, 99, 99, recent=recent), predictor)
    sparse, (log,) = decode(model, path, [plan])
    with torch.inference_mode():
        full = FullLoops(model, Start.after_prompt(path, BLOCK))
        expected = [full.step([token])[0] for token in path.tokens[path.prompt_tokens : -1]]
    assert torch.equal(torch.stack(expected), sparse[:, 0])
    np.testing.assert_allclose(np.stack(log.mass), 1.0, atol=1e-6)


def test_sliding_window_layers_see_their_window(tiny_model, tiny_prompt):
    """Beside sliding windows the same holds: all blocks of the other layers are full attention."""
    model = tiny_model("gemma3_text")
    with torch.inference_mode():
        path = follow(model, tiny_prompt(model, follow=STEPS + 1), decode_options(), no_progress)
        start = Start.after_prompt(path, BLOCK)
        assert 0 < len(start.full_layers) < model.layers
        full = FullLoops(model, start)
        expected = [full.step([token])[0] for token in path.tokens[path.prompt_tokens : -1]]
    sparse, (log,) = decode(model, path, [LoopPlan(rule(99, 99, 99), "draft")])
    assert torch.equal(torch.stack(expected), sparse[:, 0])
    assert STEPS == len(log.drafts)
    # The library's own pass over prompt and trajectory, without any of this code.
    from oasis_sim.record.probe import library_attention

    ids = torch.tensor(path.tokens[:-1])[None]
    with torch.inference_mode(), library_attention(model.module):
        logits = model.module(input_ids=ids, use_cache=False).logits[0, path.prompt_tokens :]
    assert torch.allclose(logits, sparse[:, 0], atol=1e-3 * float(logits.abs().max()))


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"cap": 1},
        {"cap": 0},
        {"chosen": 3, "pool": 6, "cap": 2},
        {"cap": 1, "cap_over_heads": True},
        {"cap": 1, "cap_over_layers": True},
        {"cap": 3, "depth_blocks": 2},
        {"chosen": 3, "pool": 3, "cap": 1, "sink": 1, "recent": 2},
    ],
)
def test_decisions_are_those_of_the_residency_core(tiny_model, path, limits):
    """Replaying the orders of sparse runs through the compiled core gives their every count."""
    names = ("draft", "previous", "current", "oracle")
    plans = [LoopPlan(rule(**limits), name) for name in names]
    _, logs = decode(tiny_model("llama"), path, plans)
    width = -(-(96 + STEPS) // BLOCK)
    rows = np.arange(STEPS)
    position = rows + 96
    for plan, log in zip(plans, logs, strict=True):
        use = padded(log.use_order, width)
        target = padded(log.draft_order, width) if plan.predictor == "draft" else use
        ahead = 1 if plan.predictor in {"draft", "previous"} else 0
        source = np.maximum(rows - ahead, 0)
        way = StepPath(rows, position, source, position[source] + ahead)
        found = simulate_path(use, target, way, plan.rule)
        for name in ("needed", "admitted", "overlap"):
            assert getattr(found, name).tolist() == np.stack(getattr(log, name)).tolist()
        assert (found.admitted[1:].sum() > 0) == (limits.get("cap") != 0)


def padded(orders, width):
    """Return orders of growing length as one array, uint16 [T, L, H, width]."""
    out = np.full((len(orders), *orders[0].shape[:2], width), 65535, dtype=np.uint16)
    for step, order in enumerate(orders):
        out[step, ..., : order.shape[-1]] = order
    return out


@pytest.mark.parametrize(
    ("kind", "sink", "recent"),
    [
        ("llama", 0, 1),
        *(
            (kind, 1, 2)
            for kind in ("llama", "qwen2", "qwen3", "mistral_full", "gemma3_text", "gemma3_wide")
        ),
    ],
)
def test_recording_of_a_sparse_run_gives_the_run(tiny_model, path_of, kind, sink, recent):
    """The recorder, over the keys that a sparse run left, sees the run's orders, drafts, mass.

    Of Gemma 3 (sliding windows beside; 24 or 256 dimensions) in its full-attention layers.
    """
    model, path = tiny_model(kind), path_of(kind)
    plan = LoopPlan(rule(sink=sink, recent=recent), "draft")
    options = decode_options(sink=sink, recent=recent)
    with torch.inference_mode():
        start = Start.after_prompt(path, BLOCK)
        loops = ClosedLoops(model, start, [plan], SkipGuess(model, SKIPPED), keep_orders=True)
        queries = watch_queries(model, loops, path.tokens[path.prompt_tokens : -1])
        sparse = Trajectory(
            store=store_of(loops, row=0),
            prompt_tokens=path.prompt_tokens,
            tokens=path.tokens,
            queries=queries,
            spans=path.spans,
            scalings=path.scalings,
            perplexity=path.perplexity,
        )
        layers = start.full_layers
        assert (kind.startswith("gemma")) == (len(layers) < model.layers)
        use = true_orders(sparse, layers, options)
        mass = true_mass(sparse, layers, options, no_progress)
        drafts = SkipDrafter("skip2-2", SKIPPED).draft(model, sparse, no_progress)
        rows = DraftRows(model, sparse, options, layers, Parts())
        draft_order = rows.run("skip2-2", drafts, no_progress)
    (log,) = loops.logs
    width = use.shape[-1]
    assert drafts == log.drafts
    assert use.tolist() == padded(log.use_order, width).tolist()
    assert draft_order.tolist() == padded(log.draft_order, width).tolist()
    rows = np.arange(STEPS)
    way = StepPath(rows, rows + 96, np.maximum(rows - 1, 0), np.maximum(rows - 1, 0) + 97)
    codes = encode_mass(mass)
    found = simulate_path(use, draft_order, way, plan.rule, mass=codes)
    assert found.needed.tolist() == np.stack(log.needed).tolist()
    # The trace rounds each block's mass to 4 %: compare after undoing what rounding did in all.
    whole = decode_mass(codes).sum(axis=-1)
    np.testing.assert_allclose(found.mass / whole, np.stack(log.mass), atol=0.02)


def store_of(loops, row):
    """Return the keys and values of one row, as the recorder keeps them."""
    stores = loops._memory.stores
    found = KeyValueStore(len(stores), stores[0].filled)
    for layer, store in stores.items():
        tail = slice(0, store.filled - store.shared)
        keys = torch.cat([store.keys, store.tail_keys[:, row, tail]], dim=1)
        values = torch.cat([store.values, store.tail_values[:, row, tail]], dim=1)
        found.append(layer, keys, values)
    return found


def watch_queries(model, loops, tokens):
    """Decode tokens; return the true rows' queries by layer, [Hq, T, d]."""
    from oasis_sim.quality import rows

    kept: list[list] = [[] for _ in range(model.layers)]
    attend = rows.TrueRows.attend

    def watched(self, inputs):
        kept[inputs.layer].append(inputs.query.clone())
        return attend(self, inputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows.TrueRows, "attend", watched)
        for token in tokens:
            loops.step([token])
    return tuple(torch.cat(queries, dim=1) for queries in kept)


def test_runs_side_by_side_are_those_alone(tiny_model, path):
    """Rows of one pass share nothing but the prompt: the same as alone, up to rounding."""
    model = tiny_model("llama")
    plans = [LoopPlan(rule(cap=cap), name) for cap in (1, 4) for name in ("draft", "previous")]
    together, logs = decode(model, path, plans)
    for place, plan in enumerate(plans):
        alone, (log,) = decode(model, path, [plan])
        assert torch.allclose(alone[:, 0], together[:, place], rtol=1e-3, atol=1e-3)
        assert np.stack(log.admitted).tolist() == np.stack(logs[place].admitted).tolist()


def test_what_is_not_resident_is_not_read(tiny_model, path):
    """Changing the values of blocks that no head attends changes nothing."""
    model = tiny_model("llama")
    plan = LoopPlan(rule(chosen=2, pool=2, cap=0), "previous")
    token = path.tokens[path.prompt_tokens]
    start = Start.after_prompt(path, BLOCK)
    read = []
    advance = RowPools.advance

    def watched(self, *arguments):
        moved = advance(self, *arguments)
        read.append(moved.attended[0])
        return moved

    with torch.inference_mode(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowPools, "advance", watched)
        expected = ClosedLoops(model, start, [plan], NgramGuess()).step([token])
        loops = ClosedLoops(model, start, [plan], NgramGuess())
        store = loops._memory.stores[0]
        store.values = store.values.clone()
        for head, blocks in enumerate(read[0]):
            for block in np.flatnonzero(~blocks[: store.shared // BLOCK]):
                store.values[head, block * BLOCK : (block + 1) * BLOCK] += 1e3
        assert torch.equal(expected, loops.step([token]))
        loops = ClosedLoops(model, start, [plan], NgramGuess())
        loops._memory.stores[0].values = start.store.values(0)[:, : store.shared] + 1.0
        assert not torch.equal(expected, loops.step([token]))
    assert not read[0].all()


def test_sliding_window_layers_alone_are_refused(tiny_model, tiny_prompt):
    """A model whose every layer sees a window only has nothing to offload."""
    from oasis_sim.errors import InputError

    model = tiny_model("mistral")
    with torch.inference_mode():
        path = follow(model, tiny_prompt(model, follow=STEPS + 1), decode_options(), no_progress)
    with pytest.raises(InputError, match="sliding window"):
        Start.after_prompt(path, BLOCK)
