"""What a selection costs where heads are selected at the same time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.pricing import price
from oasis_sim.engine.stretch import Rows, _step_times
from oasis_sim.hardware import Selection, load_profile, read_profile
from oasis_sim.model import load_model
from oasis_sim.scheme import load_scheme
from tests.hardware.test_profile import edited


def rows(*context: int) -> Rows:
    """Return sparse rows with these contexts."""
    walk = np.zeros(len(context), dtype=np.int64)
    tokens = np.array(context, dtype=np.int64)
    return Rows(tokens, walk, walk, walk, np.zeros(0, dtype=np.int64))


@pytest.mark.parametrize(
    ("context", "mean_blocks"), [((1600,), 100), ((1600, 4800), 200), ((4800,) * 7, 300)]
)
def test_time_follows_the_blocks_of_a_row(context: tuple[int, ...], mean_blocks: int) -> None:
    """However many rows there are, a layer takes the fixed time and that of a row's blocks."""
    h100 = load_profile("h100")
    costs = replace(h100.engine("vllm"), selection=Selection(5_000, 0.0, 0.0, per_block_ps=30.0))
    profile = replace(h100, engines={**h100.engines, "vllm": costs})
    cost = CostModel(profile, "vllm", load_model("qwen3-8b"), load_scheme("oasis"), 1)
    found = rows(*context)
    assert 5_000 + 30 * mean_blocks == _step_times(found, price(cost, found, 0)).selection


def test_the_profile_may_name_it(tmp_path: Path) -> None:
    """In nanoseconds; without the key a block of a row costs nothing of its own."""
    section = {"fixed": "1 us", "per_head_ns": 0, "per_candidate_ps": 0, "per_block_ns": 20.5}
    profile = read_profile(edited(tmp_path, engines__vllm__selection=section))
    assert pytest.approx(20_500) == profile.engine("vllm").selection.per_block_ps
    assert 0.0 == load_profile("h100").engine("vllm").selection.per_block_ps
