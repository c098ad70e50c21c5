"""Every kernel on a Hopper GPU against fp64 and plain oracles, on fresh inputs."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_exec.kernels import library
from gpu_exec.kernels.abi import select_scratch_bytes
from gpu_exec.kernels.layout import pack_units
from tests.gpu_exec.gpu_cases import (
    bounds_of,
    host,
    make_memory,
    needs_gpu,
    small_config,
    units_of,
    visible_local,
)
from tests.gpu_exec.kernel_oracles import (
    attention_oracle,
    error_of,
    rotate_oracle,
    scan_oracle,
)
from tests.gpu_exec.selection_cases import SelectBuffers, SelectCase

pytestmark = needs_gpu
BOUNDARIES = [0, 14, 15, 16, 17, 31, 32, 63, 64, 127, 128, 500]


def check_attention(config, memory, arguments, counts) -> None:
    """Run layer 1's attention and compare every row and head with the oracle."""
    import torch

    memory.attended.fill_(float("nan"))
    for _ in range(2):  # tickets must be left as they were found
        library.launch("oasis_attention", arguments.attention(1, 0), config.pairs, 0, 0)
    torch.cuda.synchronize()
    shape, b = config.shape, config.block_tokens
    position = memory.position.cpu().numpy()
    found = host(memory.attended).reshape(config.rows, shape.query_heads, 128)
    queries = host(memory.qkv).reshape(config.rows, -1, 128)
    for request in range(config.batch):
        for head in range(shape.kv_heads):
            pair = request * shape.kv_heads + head
            keys, values = units_of(config, memory, 1, pair)
            table = memory.table[0, 0 if config.dense else 1, pair].cpu().numpy()
            table = table[: counts[pair]] - pair * config.slots_per_pair
            for row in range(config.rows_per_request):
                last = int(position[request]) + row
                parts_k = [keys[table].reshape(-1, 128)]
                parts_v = [values[table].reshape(-1, 128)]
                if last // b != position[request] // b:
                    parts_k.append(visible_local(config, keys, int(position[request])))
                    parts_v.append(visible_local(config, values, int(position[request])))
                parts_k.append(visible_local(config, keys, last))
                parts_v.append(visible_local(config, values, last))
                k, v = np.concatenate(parts_k), np.concatenate(parts_v)
                for g in range(shape.group):
                    q = queries[row * config.batch + request, head * shape.group + g]
                    expected = attention_oracle(q, k, v, 128**-0.5)
                    at = found[row * config.batch + request, head * shape.group + g]
                    assert error_of(at, expected) < 1e-2


@pytest.mark.parametrize("group", [1, 4, 8, 16])
@pytest.mark.parametrize("block_tokens", [16, 32, 64])
@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize("splits", [1, 3])
def test_sparse_attention(group: int, block_tokens: int, draft: bool, splits: int) -> None:
    """Ragged slot lists (also empty), all block boundaries +-1, one and two rows, splits."""
    import torch

    config = small_config(
        group=group,
        block_tokens=block_tokens,
        draft_row=draft,
        batch=len(BOUNDARIES),
        moves_from="selection",
    )
    memory, arguments = make_memory(config, seed=group * 100 + block_tokens + splits)
    arguments.attention_splits = splits
    rng = np.random.default_rng(group)
    memory.position.copy_(torch.tensor(BOUNDARIES))
    counts = rng.integers(0, 9, config.pairs)
    counts[:3] = 0, 1, 8
    order = np.stack([rng.permutation(8) for _ in range(config.pairs)])
    table = order + np.arange(config.pairs)[:, None] * config.slots_per_pair
    memory.table[0, 1].copy_(torch.from_numpy(table))
    memory.table_count[0, 1].copy_(torch.from_numpy(counts))
    check_attention(config, memory, arguments, counts)


@pytest.mark.parametrize("group", [4, 8])
@pytest.mark.parametrize("splits", [1, 5])
def test_dense_attention(group: int, splits: int) -> None:
    """All full blocks of a shuffled page table and the active block."""
    import torch

    config = small_config(group=group, dense=True, batch=len(BOUNDARIES))
    memory, arguments = make_memory(config, seed=group)
    arguments.attention_splits = splits
    memory.position.copy_(torch.tensor(BOUNDARIES))
    rng = np.random.default_rng(group)
    order = np.stack([rng.permutation(config.max_blocks) for _ in range(config.pairs)])
    table = order + np.arange(config.pairs)[:, None] * config.slots_per_pair
    memory.table[0, 0].copy_(torch.from_numpy(table))
    counts = np.repeat(np.array(BOUNDARIES) // 16, config.shape.kv_heads)
    check_attention(config, memory, arguments, counts)


def test_attention_beyond_two_to_the_31_elements() -> None:
    """The last pairs of a pool of 2.4e9 elements: no 32-bit index survives."""
    import torch

    config = small_config(dense=True, batch=280, kv_heads=8, context_capacity=16000, layers=1)
    assert config.pairs * config.slots_per_pair * 4096 > 2**31
    import gpu_exec.kernels.arguments as arguments_module
    from gpu_exec.kernels.memory import StepMemory

    torch.manual_seed(5)
    memory = StepMemory(config)
    memory.qkv.normal_()
    arguments = arguments_module.StepArguments(config, memory)
    memory.position.fill_(700)
    base = torch.arange(config.pairs, device="cuda") * config.slots_per_pair
    blocks = torch.arange(config.max_blocks, device="cuda").flip(0)
    memory.table[0, 0].copy_(base[:, None] + blocks[None, :])
    library.launch("oasis_attention", arguments.attention(0, 0), config.pairs, 0, 0)
    pair = config.pairs - 1
    keys, values = units_of(config, memory, 0, pair)
    table = memory.table[0, 0, pair].cpu().numpy()[:43] - pair * config.slots_per_pair
    k = np.concatenate([keys[table].reshape(-1, 128), visible_local(config, keys, 700)])
    v = np.concatenate([values[table].reshape(-1, 128), visible_local(config, values, 700)])
    q = host(memory.qkv)[-1].reshape(-1, 128)[config.shape.query_heads - 1]
    found = host(memory.attended)[-1].reshape(-1, 128)[-1]
    assert error_of(found, attention_oracle(q, k, v, 128**-0.5)) < 1e-2


@pytest.mark.parametrize("group", [1, 4, 8])
@pytest.mark.parametrize("draft_kv", ["bf16", "fp8"])
def test_draft_attention(group: int, draft_kv: str) -> None:
    """The draft head attends all its positions, from KV in 16 or 8 bits."""
    import torch

    from gpu_exec.kernels.memory import DraftMemory

    config = small_config(group=group, draft_kv=draft_kv, batch=len(BOUNDARIES))
    memory, arguments = make_memory(config, seed=group)
    memory.position.copy_(torch.tensor(BOUNDARIES))
    draft = DraftMemory(config)
    types = {"bf16": (torch.bfloat16, torch.int16), "fp8": (torch.float8_e4m3fn, torch.uint8)}
    kind, raw = types[draft_kv]
    both = torch.randn(2, len(draft.pool), 16, 128).to(kind)
    units = pack_units(*both.view(raw).numpy())
    draft.pool.view(raw).copy_(torch.from_numpy(units))
    keys, values = both.double().numpy()
    draft.qkv.normal_()
    draft.attended.fill_(float("nan"))
    fp8 = int(draft_kv == "fp8")
    library.launch("oasis_attention", arguments.draft_attention(draft), config.pairs, fp8, 0)
    queries = host(draft.qkv).reshape(config.batch, -1, 128)
    found = host(draft.attended).reshape(config.batch, -1, 128)
    for pair in range(config.pairs):
        request, head = divmod(pair, config.shape.kv_heads)
        block, last = divmod(BOUNDARIES[request], 16)
        first = pair * draft.slots_per_pair
        local = first + draft.blocks + block % 2
        k, v = (
            np.concatenate([x[first : first + block].reshape(-1, 128), x[local, : last + 1]])
            for x in (keys, values)
        )
        for g in range(head * group, (head + 1) * group):
            expected = attention_oracle(queries[request, g], k, v, 128**-0.5)
            assert error_of(found[request, g], expected) < 1e-2


@pytest.mark.parametrize("group", [1, 4, 8, 16])
@pytest.mark.parametrize("key_format", ["bf16", "fp8"])
@pytest.mark.parametrize("splits", [1, 3])
def test_scan(group: int, key_format: str, splits: int) -> None:
    """Scores of every candidate and of nothing else, at block boundaries +-1."""
    import torch

    config = small_config(group=group, key_format=key_format, batch=len(BOUNDARIES))
    memory, arguments = make_memory(config, seed=group + splits)
    arguments.scan_splits = splits
    memory.position.copy_(torch.tensor(BOUNDARIES))
    memory.scores.fill_(float("nan"))
    args = arguments.scan(1, fused=False)
    library.launch(
        "oasis_scan", args, arguments.select(1, 0), config.pairs, int(key_format == "fp8"), 0, 0
    )
    found = host(memory.scores[1])
    queries = host(memory.qkv)[config.batch :].reshape(config.batch, -1, 128)
    for pair in range(config.pairs):
        request, head = divmod(pair, config.shape.kv_heads)
        count = (BOUNDARIES[request] + 1) // 16
        high, low = bounds_of(memory, 1, pair)
        q = queries[request, head * group : (head + 1) * group]
        assert np.isnan(found[pair, count:]).all()
        if count:
            expected = scan_oracle(q, high[:count], low[:count])
            assert error_of(found[pair, :count], expected) < 2e-3


@pytest.mark.parametrize("levels", [1, 3, 1000])
@pytest.mark.parametrize(("pool", "cap", "threads"), [(16, 4, 128), (24, 16, 256), (16, 0, 128)])
def test_selection_equals_the_cpu_build(levels: int, pool: int, cap: int, threads: int) -> None:
    """The GPU's decisions are bit-identical to the core that the CPU tests check."""
    import torch

    case = SelectCase(4, 8, pool, 16, cap, 1024)
    rng = np.random.default_rng(levels + pool + cap)
    slots = np.stack([rng.permutation(900)[:pool] for _ in range(case.pairs)])
    slots[3] = -1
    on_cpu, on_gpu = SelectBuffers(case, slots), SelectBuffers(case, slots)
    device: dict[int, torch.Tensor] = {}

    def address(array: np.ndarray) -> int:
        key = id(array)
        device[key] = torch.from_numpy(array).cuda()
        return device[key].data_ptr()

    arguments = on_gpu.arguments(address)
    scratch = select_scratch_bytes(1024, pool, 16)
    for step in range(1, 5):
        scores = (rng.integers(-levels, levels, (case.pairs, 1024)) / 3).astype(np.float32)
        position = np.array([16000 + step, 900, 250, 16366], dtype=np.int32)
        on_cpu.scores[:] = scores
        on_cpu.run_on_cpu(position, step)
        device[id(on_gpu.scores)].copy_(torch.from_numpy(scores))
        device[id(on_gpu.bounds)].zero_()
        counter = torch.tensor([step - 1], dtype=torch.int32, device="cuda")
        where = torch.from_numpy(position).cuda()
        library.launch(
            "oasis_select",
            arguments,
            library.pointer(where),
            library.pointer(counter),
            case.pairs,
            1024,
            scratch,
            threads,
            None,
        )
        for name in (
            "slot_block",
            "stamp",
            "attend_unit",
            "attend_count",
            "counts",
            "bounds",
            "source",
            "target",
        ):
            array = getattr(on_gpu, name)
            array[...] = device[id(array)].cpu().numpy()
        for name in ("slot_block", "stamp", "attend_count", "counts"):
            assert np.array_equal(getattr(on_cpu, name), getattr(on_gpu, name)), name
        assert on_cpu.moves() == on_gpu.moves()
        for pair in range(case.pairs):
            count = on_cpu.attend_count[pair]
            assert np.array_equal(
                on_cpu.attend_unit[pair, :count], on_gpu.attend_unit[pair, :count]
            )


@pytest.mark.parametrize("key_format", ["bf16", "fp8"])
@pytest.mark.parametrize("block_tokens", [16, 32])
def test_append(key_format: str, block_tokens: int) -> None:
    """K, V, rotated queries and min/max of 40 consecutive tokens; the draft row leaves no trace."""
    import torch

    config = small_config(key_format=key_format, block_tokens=block_tokens, batch=4)
    memory, arguments = make_memory(config, seed=block_tokens)
    norm = torch.rand(2, 128, device="cuda").bfloat16() + 0.5
    starts = np.array([0, 14, 15, 33])
    first_k: dict[tuple[int, int, int], np.ndarray] = {}
    for step in range(40):
        memory.qkv.normal_()
        before = host(memory.qkv).reshape(config.rows, -1, 128)
        memory.position.copy_(torch.from_numpy(starts + step))
        library.launch("oasis_append", arguments.append(1, norm), 0)
        after = host(memory.qkv).reshape(config.rows, -1, 128)
        for row in range(config.rows):
            request, draft = row % 4, row // 4
            last = int(starts[request]) + step + draft
            for h in range(config.shape.query_heads):
                expected = rotate_oracle(before[row, h], host(norm[0]), last)
                assert error_of(after[row, h], expected) < 6e-3
            for head in range(2):
                keys, values = units_of(config, memory, 1, request * 2 + head)
                k = visible_local(config, keys, last)[-1]
                raw = before[row, config.shape.query_heads + head]
                assert error_of(k, rotate_oracle(raw, host(norm[1]), last)) < 6e-3
                v = visible_local(config, values, last)[-1]
                assert np.array_equal(v, before[row, config.shape.query_heads + 2 + head])
                if not draft:
                    first_k[request, head, last] = k
    for request in range(4):
        for head in range(2):
            high, low = bounds_of(memory, 1, request * 2 + head)
            end = int(starts[request]) + 40
            for block in range(-(-int(starts[request]) // block_tokens), end // block_tokens):
                span = range(block * block_tokens, (block + 1) * block_tokens)
                known = np.stack([first_k[request, head, t] for t in span])
                if key_format == "bf16":
                    assert np.array_equal(high[block], known.max(axis=0))
                    assert np.array_equal(low[block], known.min(axis=0))
                else:
                    assert (high[block] >= known.max(axis=0)).all()
                    assert (low[block] <= known.min(axis=0)).all()
                    assert error_of(high[block], known.max(axis=0)) < 0.08


def test_norm_and_gate() -> None:
    """RMS norm and SiLU gate against fp64 over odd row counts."""
    import ctypes

    import torch

    x = torch.randn(37, 4096, device="cuda").bfloat16()
    w = torch.rand(4096, device="cuda").bfloat16()
    out = torch.full_like(x, float("nan"))
    library.launch(
        "oasis_rms_norm",
        library.pointer(x),
        library.pointer(w),
        library.pointer(out),
        37,
        4096,
        ctypes.c_float(1e-6),
        0,
    )
    a = host(x)
    expected = a / np.sqrt((a**2).mean(axis=1, keepdims=True) + 1e-6) * host(w)
    assert error_of(host(out), expected) < 4e-3
    gate = torch.full((37, 2048), float("nan"), device="cuda").bfloat16()
    library.launch("oasis_silu_mul", library.pointer(x), library.pointer(gate), 37, 2048, 0)
    g, u = a[:, :2048], a[:, 2048:]
    assert error_of(host(gate), g / (1 + np.exp(-g)) * u) < 4e-3


@pytest.mark.parametrize("block_tokens", [16, 64])
def test_mirror_copies_completed_blocks_only(block_tokens: int) -> None:
    """Rows at the last token of a block reach their host home byte for byte, others do not."""
    import torch

    config = small_config(block_tokens=block_tokens, batch=6, stamped=False)
    memory, arguments = make_memory(config, seed=block_tokens)
    b = block_tokens
    positions = [b - 1, b, b - 2, 2 * b - 1, 3 * b - 1, 5]
    memory.position.copy_(torch.tensor(positions))
    units = memory.host.tensor.view(-1, config.unit_bytes // 2)
    before = units.clone()
    library.launch("oasis_mirror", arguments.mirror(1), 4, None)
    torch.cuda.synchronize()
    pool = memory.pool.cpu()
    changed = set()
    for request in (0, 3, 4):
        block = positions[request] // b
        for head in range(2):
            pair = request * 2 + head
            home = ((request * 2 + 1) * 2 + head) * config.max_blocks + block
            local = pair * config.slots_per_pair + config.pool_blocks + block % 2
            assert units[home].equal(pool[1, local])
            changed.add(home)
    untouched = [i for i in range(len(units)) if i not in changed]
    assert units[untouched].equal(before[untouched])
    assert int(memory.mirrored.item()) == len(changed)
