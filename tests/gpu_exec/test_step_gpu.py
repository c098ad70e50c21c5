"""Whole steps on a Hopper GPU: moves byte-exact, hazards guarded under injected delays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpu_exec.step import DecodeStep, StageSwitches, StepConfig, StepMoves, synthetic_moves
from tests.gpu_exec.gpu_cases import needs_gpu, small_config

pytestmark = needs_gpu
STEPS = 40
DELAY_NS = 300_000


def positions_only(config: StepConfig, first: int, steps: int) -> StepMoves:
    """Return a list without moves: rows start 3 tokens apart and advance by one per step."""
    start = first + 3 * np.arange(config.batch)
    empty = np.zeros(0, dtype=np.int64)
    return StepMoves(
        offset=np.zeros(steps * config.shape.layers + 1, dtype=np.int64),
        row=empty,
        head=empty,
        slot=empty,
        host_unit=empty,
        context_tokens=(start[None, :] + np.arange(steps)[:, None]).astype(np.int32),
    )


def make_consistent(step: DecodeStep) -> None:
    """Fill the resident slots from the host units that the tables say they hold."""
    m, c = step.memory, step.config
    unit = c.unit_bytes // 2
    units = m.host.tensor.view(-1, unit)
    slot_block = m.slot_block.cpu().numpy()
    pool = m.pool.cpu()
    for layer in range(c.shape.layers):
        for pair in range(c.pairs):
            for slot in range(c.pool_blocks):
                home = host_unit(c, layer, pair, int(slot_block[layer, pair, slot]))
                pool[layer, pair * c.slots_per_pair + slot] = units[home]
    m.pool.copy_(pool)


def host_unit(c: StepConfig, layer: int, pair: int, block: int) -> int:
    """Return the modelled host unit, numbered request-major."""
    request, head = divmod(pair, c.shape.kv_heads)
    return ((request * c.shape.layers + layer) * c.shape.kv_heads + head) * c.max_blocks + block


def decide_for_real(delays: dict[str, int] | None = None, **changes: Any) -> dict[str, Any]:
    """Run steps in which selection on the GPU drives the gather; return what they left."""
    import torch

    config = small_config(
        stages=changes.pop("stages", StageSwitches(draft=False)),
        moves_from="selection",
        stamped=False,
        **changes,
    )
    assert not config.host_aliased
    step = DecodeStep(config, delays)
    step.load(positions_only(config, 600, STEPS))
    make_consistent(step)
    trail = []
    for _ in range(STEPS):
        step.run_one()
        trail.append(step.memory.logits.clone())
    torch.cuda.synchronize()
    m = step.memory
    found = {
        "logits": torch.stack(trail).cpu(),
        "slot_block": m.slot_block.cpu(),
        "stamp": m.stamp.cpu(),
        "pool": m.pool.cpu(),
        "host": m.host.tensor.clone(),
        "moved": int(m.moved.item()),
        "config": config,
    }
    step.close()
    return found


@pytest.mark.parametrize(
    "variant",
    [
        {"delays": {"transfer": DELAY_NS}},
        {"arrangement": "resident", "delays": {"transfer": DELAY_NS}},
        {"delays": {"attention": DELAY_NS}},
        {"arrangement": "resident", "delays": {"mirror": DELAY_NS}},
        {"delays": {"mirror": DELAY_NS}},
        {"delays": {"scan": DELAY_NS, "selection": DELAY_NS}, "prediction": "stream"},
        {"selection": "fused"},
        {"selection": "fused", "prediction": "stream", "transport": "tma_gather"},
        {"arrangement": "window", "delays": {"transfer": DELAY_NS}},
        {"arrangement": "window", "transport": "tma_gather"},
        {"transport": "warp_gather", "arrangement": "resident", "delays": {"attention": DELAY_NS}},
        {"transport": "warp_gather", "arrangement": "window", "gather_exclusive": False},
        {"arrangement": "resident", "delays": {"selection": DELAY_NS}, "early_launch": False},
    ],
)
def test_delays_change_nothing(variant: dict[str, Any]) -> None:
    """However late a stage is, every step computes what the serial order computes, bit by bit."""
    serial = decide_for_real(stages=StageSwitches(draft=False, serial=True))
    assert serial["moved"] > 0
    other = decide_for_real(**{k: dict(v) if k == "delays" else v for k, v in variant.items()})
    for name in ("logits", "slot_block", "stamp", "pool", "host"):
        assert serial[name].equal(other[name]), name
    assert serial["moved"] == other["moved"]


@pytest.mark.parametrize("block_tokens", [16, 32])
def test_residents_hold_their_own_blocks(block_tokens: int) -> None:
    """After 40 steps every slot holds, byte for byte, the host unit that its table names."""
    found = decide_for_real(block_tokens=block_tokens, context_capacity=1400)
    config = found["config"]
    units = found["host"].view(-1, config.unit_bytes // 2)
    newest = 0
    for layer in range(config.shape.layers):
        for pair in range(config.pairs):
            for slot in range(config.pool_blocks):
                block = int(found["slot_block"][layer, pair, slot])
                newest = max(newest, block)
                at = pair * config.slots_per_pair + slot
                assert found["pool"][layer, at].equal(units[host_unit(config, layer, pair, block)])
    assert newest >= config.pool_blocks  # something was admitted


@pytest.mark.parametrize("transport", ["warp_gather", "tma_gather", "copy_engine", "naive"])
@pytest.mark.parametrize("block_tokens", [16, 64])
def test_schedule_is_executed_to_the_byte(transport: str, block_tokens: int) -> None:
    """Every unit of the list arrives with its stamp; bytes moved equal bytes scheduled."""
    config = small_config(
        transport=transport,
        block_tokens=block_tokens,
        context_capacity=4000,
        stages=StageSwitches(),
        host_bytes=8 << 20,
    )
    step = DecodeStep(config)
    moves = synthetic_moves(config, 3, 2.5, 3900)
    step.load(moves)
    for index in range(4):
        before = int(step.memory.moved.item())
        step.run_one()
        check = step.verify()
        first, last = ((index % 3) * 2, (index % 3) * 2 + 2)
        scheduled = int(moves.offset[last] - moves.offset[first])
        assert (check.checked_units, check.wrong_units) == (scheduled, 0)
        if transport not in ("copy_engine", "naive"):
            pieces = int(step.memory.moved.item()) - before
            assert pieces * 8192 == scheduled * config.unit_bytes
    times = step.run(2, warmup=1, stages=True)
    assert 0 < times.stage_ms["attention"] < times.raw_stage_ms["attention"]
    assert 0 < times.empty_ms < 0.05
    step.close()


@pytest.mark.parametrize("transport", ["copy_engine", "naive"])
@pytest.mark.parametrize("late", ["attention", "mirror"])
def test_copies_by_the_host_wait_for_the_graph(transport: str, late: str) -> None:
    """However late a layer is released, steps compute what the serial order computes."""
    import torch

    results = []
    for delays, serial in ((None, True), ({late: DELAY_NS}, False)):
        stages = StageSwitches(draft=False, serial=serial)
        config = small_config(transport=transport, stages=stages, host_bytes=8 << 20, layers=6)
        step = DecodeStep(config, delays)
        step.load(synthetic_moves(config, 3, 3.0, 600))
        trail = []
        for _ in range(6):
            step.run_one()
            trail.append(step.memory.logits.clone())
        torch.cuda.synchronize()
        results.append((torch.stack(trail).cpu(), step.memory.pool.cpu()))
        step.close()
    assert all(a.equal(b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize(("threads", "ahead"), [(1, 1), (3, 2), (16, 8)])
def test_batches_arrive_whoever_submits_them(threads: int, ahead: int) -> None:
    """Every unit arrives with its stamp, by one thread or many, and in the step that moves it."""
    config = small_config(transport="copy_engine", stages=StageSwitches(), host_bytes=8 << 20)
    config = replace(config, copy_threads=threads, copies_ahead=ahead, pool_blocks=40)
    step = DecodeStep(config)
    step.load(synthetic_moves(config, 3, 30.0, 600))
    for _ in range(5):
        step.run_one()
        check = step.verify()
        assert check.checked_units > 0
        assert check.wrong_units == 0
    step.close()


def test_a_wrong_unit_is_found() -> None:
    """One flipped bit in one moved unit is reported."""
    config = small_config(stages=StageSwitches(), host_bytes=8 << 20)
    step = DecodeStep(config)
    moves = synthetic_moves(config, 1, 2.0, 600)
    step.load(moves)
    step.run_one()
    assert step.verify().wrong_units == 0
    pair = int(moves.row[0]) * config.shape.kv_heads + int(moves.head[0])
    unit = step.memory.pool[0, pair * config.slots_per_pair + int(moves.slot[0])]
    unit[1234] = -unit[1234]
    assert step.verify().wrong_units == 1
    step.close()


def test_dense_step_and_ablations_run() -> None:
    """Every stage switch gives a step that runs; dense steps move nothing."""
    for stages in (
        StageSwitches(),
        *(
            replace(StageSwitches(), **{name: False})
            for name in ("scan", "selection", "transfer", "mirror", "attention", "draft")
        ),
        StageSwitches(serial=True),
    ):
        for dense in (False, True):
            config = small_config(stages=stages, dense=dense, host_bytes=8 << 20)
            step = DecodeStep(config)
            step.load(synthetic_moves(config, 2, 1.0, 600))
            times = step.run(2, warmup=1)
            moved = 0 if dense or not stages.transfer else times.moved_units
            assert times.moved_units == moved
            assert (times.moved_units > 0) == (stages.transfer and not dense)
            step.close()
