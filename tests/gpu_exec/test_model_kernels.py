"""The kernels of a model's paged decode, one by one, for every head dimension, on random inputs.

Without a GPU the CPU's twin of the kernels is held to plain arithmetic; with one the kernels are.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="decoding needs PyTorch")

import torch

from gpu_exec.build import build_selection_for_cpu
from gpu_exec.kernels.shape import HEAD_DIMS
from gpu_exec.model.checked import CheckedKernels
from gpu_exec.model.choice import new_residents
from gpu_exec.model.host_kernels import HostKernels
from gpu_exec.model.kernels import CudaKernels
from gpu_exec.model.memory import token_pairs
from gpu_exec.model.page import PageShape
from oasis_sim.residency import ResidencyRule
from tests.gpu_exec.gpu_cases import missing_gpu
from tests.gpu_exec.kernel_oracles import attention_oracle, error_of, scan_oracle

ROWS, HEADS, SLOTS, BLOCKS = 3, 2, 6, 40
POSITIONS = [15, 256, 500]

needs_compiler = pytest.mark.skipif(
    build_selection_for_cpu() is None, reason="no C++ compiler to build the selection core"
)
no_gpu = pytest.mark.skipif(missing_gpu() is not None, reason=f"{missing_gpu()}")
both_sides = pytest.mark.parametrize(
    "side", ["host", pytest.param("cuda", marks=[pytest.mark.gpu, no_gpu])]
)
any_width = pytest.mark.parametrize(
    ("head_dim", "group"), [*((dim, 3) for dim in HEAD_DIMS), (200, 4), (256, 8), (64, 16)]
)


class Bench:
    """Hold kernels over random memory of one layer."""

    def __init__(self, side: str, head_dim: int, group: int, block_tokens: int = 16) -> None:
        """Fill units, tiles and queries with normal numbers, zeros where heads are padded."""
        torch.manual_seed(head_dim + group)
        self.shape = PageShape(ROWS, HEADS, group, head_dim, block_tokens, BLOCKS, SLOTS)
        self.device = torch.device("cpu" if side == "host" else "cuda")
        make = HostKernels if side == "host" else CudaKernels
        chosen = torch.full((ROWS,), 4)
        self.kernels = CheckedKernels(
            make(self.shape, self.device), self.shape, self.device, chosen
        )
        shape = self.shape
        self.keys, self.values = self._normal(2, shape.pairs, shape.slots_per_pair, block_tokens)
        self.units = torch.empty(shape.pairs * shape.slots_per_pair, shape.unit_elements)
        places = torch.from_numpy(shape.token_places)
        both = torch.stack([self.keys, self.values], dim=3).flatten(0, 1)
        self.units[:, places.flatten()] = both.flatten(1)
        self.units = self.units.bfloat16().to(self.device)
        one, other = self._normal(2, shape.pairs, shape.score_stride)
        self.high, self.low = torch.maximum(one, other), torch.minimum(one, other)
        self.tiles = torch.empty(shape.pairs, shape.key_tiles, shape.key_tile_elements)
        bounds = torch.cat([self.high, self.low], dim=-1).unflatten(1, (-1, 16)).flatten(2)
        self.tiles[..., torch.from_numpy(shape.bound_places).flatten()] = bounds
        self.tiles = self.tiles.bfloat16().to(self.device)

    def _normal(self, *size: int) -> torch.Tensor:
        values = torch.randn(*size, self.shape.width).bfloat16().float()
        values[..., self.shape.head_dim :] = 0.0
        return values

    def query(self, rows: int) -> torch.Tensor:
        """Return queries of some rows, [J, R, Hq, d]."""
        found = self._normal(rows, ROWS, HEADS * self.shape.group)
        return found.bfloat16().to(self.device)

    def at(self, ahead: int = 0) -> torch.Tensor:
        """Return the rows' positions."""
        return torch.tensor(POSITIONS, dtype=torch.int32, device=self.device) + ahead


@both_sides
@any_width
@pytest.mark.parametrize("block_tokens", [16, 32])
@pytest.mark.parametrize("rows", [1, 2])
def test_attention(side: str, head_dim: int, group: int, block_tokens: int, rows: int) -> None:
    """Listed units, the block being filled and its successor, each row up to its position."""
    bench = Bench(side, head_dim, group, block_tokens)
    shape, size = bench.shape, block_tokens
    counts = torch.tensor([0, 1, 2, 6, 5, 3], dtype=torch.int32, device=bench.device)
    table = torch.stack([torch.randperm(SLOTS) for _ in range(shape.pairs)]).int()
    units = table + torch.arange(shape.pairs)[:, None].int() * shape.slots_per_pair
    query = bench.query(rows)
    out = bench.kernels._inner.attend(
        query, bench.units, units.to(bench.device), counts, bench.at(), head_dim**-0.5
    )
    for pair in range(shape.pairs):
        row, head = divmod(pair, HEADS)
        at = POSITIONS[row]
        listed = table[pair, : counts[pair]].tolist()
        local = [SLOTS + (at // size + more) % 2 for more in range(2)]
        for ahead in range(rows):
            slots, seen = [*listed, *local], len(listed) * size + at % size + 1 + ahead
            k, v = (
                part[pair, slots].flatten(0, 1)[:seen]
                for part in (bench.keys.double(), bench.values.double())
            )
            k, v = k.numpy(), v.numpy()
            for g in range(group):
                q = query[ahead, row, head * group + g].double().cpu().numpy()
                expected = attention_oracle(q, k, v, head_dim**-0.5)
                found = out[ahead, row, head * group + g].double().cpu().numpy()
                assert error_of(found, expected) < 1e-2


@both_sides
@any_width
def test_scan(side: str, head_dim: int, group: int) -> None:
    """Scores of complete blocks, and of no others."""
    bench = Bench(side, head_dim, group)
    scores = torch.full((ROWS, HEADS, bench.shape.score_stride), torch.nan, device=bench.device)
    query = bench.query(1)[0]
    bench.kernels._inner.scan(query, bench.tiles, scores, bench.at())
    for pair in range(bench.shape.pairs):
        row, head = divmod(pair, HEADS)
        blocks = (POSITIONS[row] + 1) // 16
        found = scores[row, head].double().cpu().numpy()
        assert np.isnan(found[blocks:]).all()
        q = query[row, head * group : (head + 1) * group].double().cpu().numpy()
        high, low = (part[pair, :blocks].double().numpy() for part in (bench.high, bench.low))
        assert error_of(found[:blocks], scan_oracle(q, high, low)) < 1e-6


@both_sides
@any_width
def test_append(side: str, head_dim: int, group: int) -> None:
    """Tokens one after another: units and extremes are theirs, others stay as they are."""
    bench = Bench(side, head_dim, group)
    before = bench.units.clone()
    for ahead in range(1, 40):
        key, value = bench._normal(2, ROWS, HEADS)[..., :head_dim]
        both = token_pairs(bench.shape, key, value).to(bench.device)
        bench.kernels.append(both, bench.units, bench.tiles, bench.at(ahead))
    tally = bench.kernels.tally
    assert (tally.appended, tally.appended_wrong) == (39 * bench.shape.pairs, 0)
    changed = (bench.units != before).any(dim=1).view(bench.shape.pairs, -1)
    assert not changed[:, :SLOTS].any()


@needs_compiler
@both_sides
@any_width
@pytest.mark.parametrize("block_tokens", [16, 48])
def test_select_and_gather(side: str, head_dim: int, group: int, block_tokens: int) -> None:
    """What is admitted arrives, byte for byte."""
    bench = Bench(side, head_dim, group, block_tokens)
    shape = bench.shape
    rule = ResidencyRule(4, SLOTS, 2, block_tokens=block_tokens)
    residents, _ = new_residents([rule] * ROWS, shape, bench.device)
    host = torch.randn(shape.pairs * BLOCKS, shape.unit_elements).bfloat16()
    host = host if side == "host" else host.pin_memory()
    position = torch.full((ROWS,), 12 * block_tokens, dtype=torch.int32, device=bench.device)
    for step in range(4):
        scores = torch.randn(ROWS, HEADS, shape.score_stride, device=bench.device)
        for row, each in enumerate(residents):
            cap = 4 if step == 0 else 2
            counter = position * 0 + step
            bench.kernels.select(each, scores[row], position, counter, cap)
            slots = bench.units[row * HEADS * shape.slots_per_pair :][
                : HEADS * shape.slots_per_pair
            ]
            bench.kernels.gather(each, host, slots)
    tally = bench.kernels.tally
    assert (tally.selection_differs, tally.units_wrong) == (0, 0)
    assert tally.units_gathered * shape.unit_bytes == bench.kernels.moved_bytes > 0
