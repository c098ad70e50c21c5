"""Figure 1 for any model and card: what each memory tier permits at most.

Token-KV intensity of a tier is tokens per decode pass / KV bytes moved over the tier; the tier
then permits intensity x bandwidth tokens per second. Beside the tiers stands the batch's own
limit, B_max / TPOT_min, with B_max = KV pool / bytes per request and TPOT_min = max(weight bytes
/ HBM bandwidth, FLOPs / peak). (Figure 1 of arXiv 2608.08097.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.memory import footprint, plan_memory
from oasis_sim.engine.trace_fit import check_traces
from oasis_sim.engine.walks import build_walks
from oasis_sim.errors import RunFailed, UsageError
from oasis_sim.hardware import HardwareProfile
from oasis_sim.model import ModelShape
from oasis_sim.network import NetworkProfile
from oasis_sim.scheme import Scheme
from oasis_sim.trace import AttentionTrace
from oasis_sim.units import GB

ENGINE = "roofline"


@dataclass(frozen=True)
class Tier:
    """Hold one tier's roof: KV bytes per token and GPU, and what that permits at most.

    Without traffic on the tier there is no roof: intensity and rate are None.
    """

    name: str
    kv_bytes_per_token: float
    bytes_per_s: float

    @property
    def tokens_per_gb(self) -> float | None:
        """Return the Token-KV intensity in tokens per GB."""
        return GB / self.kv_bytes_per_token if self.kv_bytes_per_token else None

    @property
    def tokens_per_s(self) -> float | None:
        """Return the tier's roof in output tokens per second."""
        return self.bytes_per_s / self.kv_bytes_per_token if self.kv_bytes_per_token else None


@dataclass(frozen=True)
class Roofline:
    """Hold every roof of one scheme at one context; per GPU where it says so."""

    scheme: str
    tiers: tuple[Tier, ...]
    request_bytes: int
    batch: int
    tpot_min_s: float

    @property
    def batch_tokens_per_s(self) -> float:
        """Return B_max / TPOT_min."""
        return self.batch / self.tpot_min_s

    @property
    def roofs(self) -> dict[str, float | None]:
        """Return every roof by name, in output tokens per second (None: no roof)."""
        return {
            **{tier.name: tier.tokens_per_s for tier in self.tiers},
            "batch": self.batch_tokens_per_s,
        }

    @property
    def binding(self) -> str:
        """Return the name of the lowest roof of one node; the network's is not one of them."""
        known = {
            name: roof
            for name, roof in self.roofs.items()
            if roof is not None and name != "network"
        }
        return min(known, key=lambda name: known[name])

    def rows(self) -> list[dict[str, Any]]:
        """Return one plain row per roof."""
        rows: list[dict[str, Any]] = [
            {
                "scheme": self.scheme,
                "roof": tier.name,
                "kv_bytes_per_token": tier.kv_bytes_per_token,
                "intensity_tokens_per_gb": tier.tokens_per_gb,
                "bandwidth_gb_per_s": tier.bytes_per_s / GB,
                "batch_max": None,
                "tpot_min_ms": None,
                "output_tokens_per_s_max": tier.tokens_per_s,
                "binds": self.binding == tier.name,
            }
            for tier in self.tiers
        ]
        rows.append(
            {
                "scheme": self.scheme,
                "roof": "batch",
                "kv_bytes_per_token": None,
                "intensity_tokens_per_gb": None,
                "bandwidth_gb_per_s": None,
                "batch_max": self.batch,
                "tpot_min_ms": 1e3 * self.tpot_min_s,
                "output_tokens_per_s_max": self.batch_tokens_per_s,
                "binds": self.binding == "batch",
            }
        )
        return rows


@dataclass(frozen=True, eq=False)
class RooflineCase:
    """Name what the roofs are computed for; `traces` give the blocks that move.

    Each GPU has a node's network to itself. `engine` leaves of HBM what it leaves in a run; how
    long anything takes does not depend on it.
    """

    profile: HardwareProfile
    model: ModelShape
    context_tokens: int
    network: NetworkProfile
    tp: int = 1
    engine: str = ENGINE
    traces: tuple[AttentionTrace, ...] = ()
    drafter: str | None = None


def roofline(case: RooflineCase, scheme: Scheme) -> Roofline:
    """Compute the roofs of one scheme at nominal bandwidths.

    HBM bytes per token: all KV of the context (dense), or the attended blocks and the min/max keys
    of every block (schemes that select). PCIe bytes: the blocks that a trace moves, or the cap
    without a trace. The network roof holds when the blocks come from another node's memory.
    """
    _check_tp(case.model, case.tp)
    cost = CostModel(case.profile, ENGINE, case.model, scheme, case.tp)
    in_runs = CostModel(case.profile, case.engine, case.model, scheme, case.tp)
    plan, sizes = plan_memory(in_runs, case.context_tokens), footprint(cost)
    context = case.context_tokens
    request = sizes.sparse_bytes(context) if scheme.selects else sizes.dense_bytes(context)
    batch = plan.kv_pool_bytes // request
    if scheme.offload:
        batch = min(batch, plan.host_capacity_bytes // sizes.host_bytes(context))
    if batch == 0:
        raise RunFailed(
            f"not one request of {context:,} tokens fits {case.profile.name} under scheme "
            f"{scheme.name}; shorten the context or use more GPUs (--tp)"
        )
    moved = moved_bytes_per_token(case, cost)
    bandwidths = (case.profile.gpu.hbm_bytes_per_s, case.profile.pcie.bytes_per_s)
    hbm = Tier("hbm", read_bytes_per_token(cost, context), bandwidths[0])
    pcie = Tier("pcie", moved, bandwidths[1])
    network = Tier("network", moved, case.network.node_bytes_per_s)
    tpot_min_s = _tpot_min_s(cost, batch)
    return Roofline(scheme.name, (hbm, pcie, network), request, batch, tpot_min_s)


def _check_tp(model: ModelShape, tp: int) -> None:
    """Raise UsageError unless `tp` GPUs can share the heads of a model."""
    if model.query_heads % tp or (model.kv_heads % tp and tp % model.kv_heads):
        raise UsageError(
            f"{model.query_heads} query heads and {model.kv_heads} KV heads of {model.name} "
            f"cannot be spread evenly over {tp} GPUs"
        )


def read_bytes_per_token(cost: CostModel, context_tokens: int) -> float:
    """Return the HBM bytes that attention and prediction read per token and GPU."""
    share, scheme = cost.share, cost.scheme
    if not scheme.selects:
        return float(context_tokens * share.kv_bytes_token)
    attended = min(context_tokens, scheme.attended_tokens_max)
    scanned = 0.0
    if scheme.compressed_keys:
        blocks = context_tokens / scheme.block_tokens
        scanned = blocks * cost.scan_bytes_per_block() * share.model.layers
    return attended * share.kv_bytes_token + scanned


def moved_bytes_per_token(case: RooflineCase, cost: CostModel) -> float:
    """Return the bytes of blocks that cross the host link per token and GPU."""
    share, scheme = cost.share, cost.scheme
    if not scheme.offload:
        return 0.0
    if not case.traces:
        outside = max(0, case.context_tokens // scheme.block_tokens - scheme.chosen_blocks)
        blocks = float(min(scheme.admission_cap, outside) * share.kv_heads * share.model.layers)
    else:
        check_traces(case.traces, scheme, case.context_tokens)
        walks = build_walks(case.traces, scheme, share, case.drafter, 0)
        blocks = float(walks.tables.rung_blocks.mean(axis=(0, 1)).max())
    return blocks * share.block_bytes(scheme)


def _tpot_min_s(cost: CostModel, batch: int) -> float:
    """Return max(weight bytes / HBM bandwidth, FLOPs / peak) of one pass over a batch."""
    share, gpu = cost.share, cost.profile.gpu
    rows, layers = batch * cost.rows_per_request, share.model.layers
    parts = ((share.qkv, layers), (share.output_ffn, layers), (share.lm_head, 1))
    weights = sum(part.bytes_read(rows) * count for part, count in parts)
    flops = sum(part.flops(rows) * count for part, count in parts)
    return max(weights / gpu.hbm_bytes_per_s, flops / gpu.bf16_flops_per_s)
