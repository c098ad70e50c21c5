"""Pools that learn from attention: the arrays beside the reading version, head by head."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="decoding needs the extra 'record'")

from oasis_sim.quality.pools import RowPools
from oasis_sim.residency import ResidencyRule
from oasis_sim.residency.arrays import MASS_UNITS
from oasis_sim.residency.head_pool import HeadPool
from oasis_sim.trace.mass import decode_mass

BLOCK = 4
BLOCKS = 12
STEPS = 12

rules = st.builds(
    ResidencyRule,
    chosen_blocks=st.integers(2, 4),
    pool_blocks=st.integers(4, 6),
    cap_blocks=st.integers(0, 4),
    sink_blocks=st.integers(0, 1),
    recent_blocks=st.integers(1, 2),
    block_tokens=st.just(BLOCK),
    least_attended=st.just(True),
    gainful=st.booleans(),
)


@settings(max_examples=60)
@given(rules, st.integers(0, 2**32 - 1))
def test_decisions_by_attention_are_those_of_the_reading_version(rule, seed):
    """Two heads over some steps: needed, admitted, overlap and what is read, all alike."""
    random = np.random.default_rng(seed)
    rows = RowPools([rule], heads=2, blocks=BLOCKS + 2)
    heads = [HeadPool(rule) for _ in range(2)]
    for step in range(STEPS):
        position = (BLOCKS - 2) * BLOCK + step // 2
        complete = position // BLOCK
        use, target = (
            np.stack([random.permutation(complete) for _ in heads])[None].astype(np.uint16)
            for _ in range(2)
        )
        codes = random.integers(100, 256, (2, complete + 1)).astype(np.uint8)
        moved = rows.advance(position, use, target)
        shares = np.zeros((1, 2, complete + 1))
        for head, pool in enumerate(heads):
            true_set, missing, fetched = pool.choose(use[0, head], position), 0, []
            aim = true_set
            if step == 0:
                pool.fill(true_set)
            else:
                aim = pool.choose(target[0, head], position)
                missing, fetched = pool.advance(step, aim)
            attended = pool.attended(aim)
            pool.observe(fetched, attended, position, codes[head])
            read = pool.read_blocks(attended, position, complete + 1)
            assert sorted(read) == np.flatnonzero(moved.attended[0, head]).tolist()
            counts = (missing, len(fetched), len(attended & set(true_set)))
            found = (moved.needed, moved.admitted, moved.overlap)
            assert counts == tuple(int(each[0, head]) for each in found)
            units = np.round(decode_mass(codes[head]) * MASS_UNITS).astype(np.int64)
            shares[0, head] = units / max(1, int(units[read].sum()))
        rows.observe(shares)
