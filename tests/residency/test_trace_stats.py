"""Trace statistics: against an independent brute force, by hand, and on a recording."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oasis_sim.errors import InputError
from oasis_sim.residency.sample import sample_stats
from oasis_sim.residency.stats import default_predictors, stats_rule, trace_stats
from oasis_sim.trace import AttentionTrace, load_trace, select_part
from tests.strategies import make_trace


def decode(code: int) -> float:
    """Decode one mass code as the format says."""
    return 0.0 if code == 0 else 2.0 ** (code / 255 * 16 - 16)


class BruteForce:
    """Compute the statistics straight from their definition, with dictionaries and sorting."""

    def __init__(self, trace: AttentionTrace, budget: int) -> None:
        self.trace, self.b = trace, trace.block_tokens
        self.blocks = budget // self.b
        self.k = self.blocks - 3

    def cand(self, order: Any, position: int) -> list[int]:
        """Return the first k of an order in blocks 1 .. p // b - 2."""
        last = position // self.b - 2
        return [int(x) for x in order if x != 65535 and 1 <= x <= last][: self.k]

    def mass(self, chosen: set[int], step: int, layer: int, head: int) -> float:
        """Return the mass of a set and of block 0 and the two newest blocks."""
        assert self.trace.mass is not None
        active = int(self.trace.position[step]) // self.b
        codes = self.trace.mass[step, layer, head]
        return sum(decode(int(codes[x])) for x in chosen | {0, active - 1, active})

    def ahead(self, order: Any, ratio: float) -> dict[str, float]:
        """Return the means of a predictor one step ahead."""
        t, sums = self.trace, dict.fromkeys(("needed", "admitted", "overlap", "mass"), 0.0)
        cap = math.floor(ratio * self.blocks)
        for layer, head in np.ndindex(t.layers, t.kv_heads):
            resident = set(self.cand(t.use_order[0, layer, head], t.position[0]))
            stamp = dict.fromkeys(resident, 0)
            for s in range(1, t.steps):
                target = self.cand(order[s - 1, layer, head], t.position[s - 1] + 1)
                needed = [x for x in target if x not in resident]
                admitted = needed[:cap]
                outside = sorted(resident - set(target), key=lambda x: (stamp[x], x))
                excess = len(resident) + len(admitted) - self.k
                resident = (resident - set(outside[: max(excess, 0)])) | set(admitted)
                stamp |= {x: s for x in target if x in resident}
                used = set(self.cand(t.use_order[s, layer, head], t.position[s]))
                sums["needed"] += len(needed) / self.k
                sums["admitted"] += len(admitted) / self.k
                sums["overlap"] += len(resident & used) / self.k
                sums["mass"] += self.mass(resident, s, layer, head)
        return self.means(sums)

    def best(self, by_mass: bool) -> dict[str, float]:
        """Return the means of the sets that the step itself would choose."""
        t, sums = self.trace, dict.fromkeys(("mass", "new"), 0.0)
        for layer, head in np.ndindex(t.layers, t.kv_heads):
            before: set[int] = set()
            for s in range(t.steps):
                order = t.use_order[s, layer, head]
                if by_mass:
                    assert t.mass is not None
                    codes = t.mass[s, layer, head].astype(int)
                    order = sorted(range(len(codes)), key=lambda x: (-codes[x], x))
                now = set(self.cand(order, t.position[s]))
                if s:
                    sums["mass"] += self.mass(now, s, layer, head)
                    sums["new"] += len(now - before) / self.k
                before = now
        return self.means(sums)

    def means(self, sums: dict[str, float]) -> dict[str, float]:
        """Average over steps and heads."""
        count = (self.trace.steps - 1) * self.trace.layers * self.trace.kv_heads
        return {name: value / count for name, value in sums.items()}


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    blocks=st.integers(4, 15),
    ratio=st.sampled_from([0.0, 0.02, 0.05, 0.1, 0.3, 1.0]),
    jitter=st.sampled_from([0.02, 0.3, 3.0]),
)
def test_statistics_equal_their_definition(
    seed: int, blocks: int, ratio: float, jitter: float
) -> None:
    """Every number of every predictor agrees with a brute force to 1e-9."""
    trace = make_trace(seed, steps=7, stored=20, jitter=jitter)
    budget = blocks * trace.block_tokens
    rows = {row.predictor: row for row in trace_stats(trace, [budget], [ratio])}
    assert ["oracle_mass", "current", "previous", "ngram"] == list(rows)
    brute = BruteForce(trace, budget)
    for name, by_mass in (("oracle_mass", True), ("current", False)):
        expected = brute.best(by_mass)
        assert expected["mass"] == pytest.approx(rows[name].attention_mass, abs=1e-9)
        assert expected["new"] == pytest.approx(rows[name].new_blocks, abs=1e-9)
    for name, order in (("previous", trace.use_order), ("ngram", trace.pred_order["ngram"])):
        expected = brute.ahead(order, ratio)
        assert expected["needed"] == pytest.approx(rows[name].needed, abs=1e-9)
        assert expected["admitted"] == pytest.approx(rows[name].admitted, abs=1e-9)
        assert expected["overlap"] == pytest.approx(rows[name].overlap, abs=1e-9)
        assert expected["mass"] == pytest.approx(rows[name].attention_mass, abs=1e-9)


@pytest.mark.skipif(
    "OASIS_SHARED_DIR" not in os.environ,
    reason="needs the recording smollm2-prose2k and its expected numbers (OASIS_SHARED_DIR)",
)
def test_a_real_recording_gives_the_numbers_of_another_program() -> None:
    """All numbers of the expected file agree to 1e-6."""
    folder = Path(os.environ["OASIS_SHARED_DIR"]) / "traces"
    expected = json.loads((folder / "smollm2-prose2k.expected.json").read_text())
    budgets = sorted({row["budget_tokens"] for row in expected["rows"]})
    ratios = sorted({row["fetch_ratio"] for row in expected["rows"] if "fetch_ratio" in row})
    trace = load_trace(folder / "smollm2-prose2k.npz")
    found = {
        (row.budget_tokens, row.predictor, row.fetch_ratio): row.to_json()
        for row in trace_stats(trace, budgets, ratios)
    }
    assert expected["trace"] == trace.name
    assert len(expected["rows"]) == len(found)
    for row in expected["rows"]:
        other = found[row["budget_tokens"], row["predictor"], row.get("fetch_ratio")]
        assert row == pytest.approx(other, abs=1e-6)


def test_the_cap_is_exact_in_decimals() -> None:
    """0.29 of 100 blocks is 29 blocks, not 28 by rounding of binary fractions."""
    trace = make_trace(1)
    assert 29 == stats_rule(trace, 100 * trace.block_tokens, 0.29).cap_blocks
    assert 100 == stats_rule(trace, 100 * trace.block_tokens, 1.0).cap_blocks


@pytest.mark.parametrize(
    ("budget", "ratio", "word"),
    [(63, 1.0, "multiple"), (12, 1.0, "no block to choose"), (24, 1.5, "0 to 1")],
)
def test_questions_without_meaning_are_refused(budget: int, ratio: float, word: str) -> None:
    """A budget that is no multiple of the block or too small, a ratio above 1."""
    with pytest.raises(InputError, match=word):
        trace_stats(make_trace(1), [budget], [ratio])


def test_a_budget_beyond_the_stored_orders_is_refused() -> None:
    """Short orders would look like a smaller budget; the message names the largest answer."""
    trace = make_trace(1, stored=8, prompt=200)
    with pytest.raises(InputError, match=r"stored_blocks.*at most \d chosen"):
        trace_stats(trace, [14 * trace.block_tokens], [1.0], ["current"])


def test_the_largest_budget_that_is_stored_is_answered() -> None:
    """The budget named in the refusal works, one block more does not."""
    trace = make_trace(1, stored=8, prompt=200)
    with pytest.raises(InputError) as caught:
        trace_stats(trace, [14 * trace.block_tokens], [1.0], ["current"])
    assert caught.value.fix is not None
    largest = int(caught.value.fix.split()[-3])
    assert trace_stats(trace, [(largest + 3) * trace.block_tokens], [1.0], ["current"])
    with pytest.raises(InputError, match="stored_blocks"):
        trace_stats(trace, [(largest + 4) * trace.block_tokens], [1.0], ["current"])


def test_short_contexts_may_store_fewer_blocks_than_the_budget() -> None:
    """When every complete block is stored, a large budget means all of them."""
    trace = make_trace(1, stored=20, prompt=60)
    row = trace_stats(trace, [40 * trace.block_tokens], [1.0], ["current"])[0]
    assert row.new_blocks is not None
    assert row.new_blocks < 1.0 / 37


def test_without_mass_the_mass_is_unknown() -> None:
    """Overlap is still reported; the oracle by mass cannot be asked."""
    trace = make_trace(2, stored=20, with_mass=False)
    row = trace_stats(trace, [24], [1.0], ["previous"])[0]
    assert row.attention_mass is None
    assert row.overlap is not None
    assert "oracle_mass" not in default_predictors(trace)
    with pytest.raises(InputError, match="mass"):
        trace_stats(trace, [24], [1.0], ["oracle_mass"])


class Shares(BruteForce):
    """The same of masses that are no shares yet."""

    def mass(self, chosen: set[int], step: int, layer: int, head: int) -> float:
        """Return the part that a set and the blocks beside it have of all mass."""
        assert self.trace.mass is not None
        whole = sum(decode(int(code)) for code in self.trace.mass[step, layer, head])
        return super().mass(chosen, step, layer, head) / whole


@pytest.mark.parametrize("seed", range(3))
def test_masses_joined_by_the_largest_head_are_told_as_shares(seed: int) -> None:
    """They add up to more than 1; what is captured is a share of all blocks' all the same."""
    trace = make_trace(seed, steps=7, stored=20)
    trace = replace(trace, meta={**trace.meta, "aggregation": {"bound": "max", "mass": "max"}})
    rows = {row.predictor: row for row in trace_stats(trace, [32], [0.3])}
    brute = Shares(trace, 32)
    expected = {
        "oracle_mass": brute.best(True),
        "current": brute.best(False),
        "previous": brute.ahead(trace.use_order, 0.3),
    }
    for name, found in expected.items():
        assert found["mass"] == pytest.approx(rows[name].attention_mass, abs=1e-9)
        assert 0.0 < found["mass"] < 1.0


class FirstStep(Shares):
    """The same with masses in step 1 alone."""

    def mass(self, chosen: set[int], step: int, layer: int, head: int) -> float:
        """Return the share of a set, 0 after step 1."""
        return super().mass(chosen, step, layer, head) if step == 1 else 0.0


@pytest.mark.filterwarnings("error")
def test_heads_without_mass_do_not_count() -> None:
    """Where all masses round to 0 there is no share; a recording of nothing else has no answer."""
    trace = make_trace(3, steps=4, stored=20)
    trace = replace(trace, meta={**trace.meta, "aggregation": {"bound": "max", "mass": "max"}})
    assert trace.mass is not None
    mass = trace.mass.copy()
    mass[2:] = 0
    (row,) = trace_stats(replace(trace, mass=mass), [32], [1.0], ["current"])
    expected = 3 * FirstStep(trace, 32).best(False)["mass"]  # of three steps one counts
    assert expected == pytest.approx(row.attention_mass, abs=1e-9)
    mass[1] = 0
    (row,) = trace_stats(replace(trace, mass=mass), [32], [1.0], ["current"])
    assert row.attention_mass is None


def test_sliding_window_layers_do_not_count() -> None:
    """Averages are over full-attention layers only; without any, there is no answer."""
    trace = make_trace(3, stored=20, layers=3)
    meta = dict(trace.meta) | {"layer_span": [None, 16, None]}
    mixed = replace(trace, meta=meta)
    expected = trace_stats(select_part(trace, layers=[0, 2]), [24], [0.1])
    assert expected == trace_stats(mixed, [24], [0.1])
    local = replace(trace, meta=meta | {"layer_span": [16, 16, 16]})
    with pytest.raises(InputError, match="layer_span"):
        trace_stats(local, [24], [0.1])


def test_unknown_drafters_are_refused_with_the_nearest_name() -> None:
    """A misspelt drafter gets a suggestion; a trace without any says so."""
    with pytest.raises(InputError, match="did you mean 'ngram'"):
        trace_stats(make_trace(1, stored=20), [24], [1.0], ["ngam"])
    with pytest.raises(InputError, match="no draft predictions"):
        trace_stats(make_trace(1, stored=20, drafters=()), [24], [1.0], ["draft"])


def test_one_step_has_no_statistics() -> None:
    """Means over steps 1 .. T-1 need two steps."""
    with pytest.raises(InputError, match="2 or more steps"):
        trace_stats(make_trace(1, steps=1), [24], [1.0])


def test_parts_hold_the_right_rows() -> None:
    """A part keeps its steps, layers, heads, tokens and header in step."""
    trace = make_trace(4, steps=6, layers=3, heads=2)
    part = select_part(trace, steps=slice(2, 5), layers=[2, 0], heads=[1])
    np.testing.assert_array_equal(trace.use_order[2:5, [2, 0]][:, :, [1]], part.use_order)
    np.testing.assert_array_equal(trace.token[2:6], part.token)
    assert ((2, 0), 3) == (part.layer_ids, part.meta["steps"])


def test_samples_of_equal_pieces_deviate_less_when_larger() -> None:
    """Deviation is 0 for the whole and grows as windows shrink; layers cut alike."""
    trace = make_trace(5, steps=32, layers=4, heads=4, stored=20)
    rows = sample_stats(trace, 24, 0.2, "ngram")
    steps = [row for row in rows if row.axis == "steps"]
    assert [32, 16, 8, 4] == [row.kept for row in steps]
    assert [1, 2, 4, 8] == [row.samples for row in steps]
    assert dict.fromkeys(steps[0].deviation, 0.0) == steps[0].deviation
    overlap = [row.deviation["overlap"] for row in steps]
    assert overlap[1] is not None
    assert overlap[3] is not None
    assert overlap[1] < overlap[3]
    assert [4, 2, 1] == [row.kept for row in rows if row.axis == "heads"]


def test_deviation_is_that_of_the_farthest_piece() -> None:
    """Two halves of the steps, measured one by one, give the reported row."""
    trace = make_trace(7, steps=16, stored=20)
    row = next(r for r in sample_stats(trace, 24, 1.0, "ngram") if r.kept == 8)
    whole = trace_stats(trace, [24], [1.0], ["ngram"])[0].overlap
    halves = [
        trace_stats(select_part(trace, steps=span), [24], [1.0], ["ngram"])[0].overlap
        for span in (slice(0, 8), slice(8, 16))
    ]
    assert whole is not None
    assert max(abs(half - whole) for half in halves if half is not None) == pytest.approx(
        row.deviation["overlap"]
    )


def test_layers_dealt_out_average_to_the_whole() -> None:
    """Pieces of layers cover every layer once, so their mean is the whole trace's value."""
    trace = make_trace(6, steps=8, layers=4, heads=2, stored=20)
    whole, *pieces = (
        row for row in sample_stats(trace, 24, 1.0, "previous") if row.axis == "layers"
    )
    for piece in pieces:
        assert whole.mean == pytest.approx(piece.mean, abs=1e-12)
