"""Where KV bytes live: what one request occupies per tier, and the pool that must hold them all.

A dense request keeps its whole KV in HBM. A sparse one keeps a working set, the min/max keys of
every block and the draft model's KV in HBM, and its whole KV in host memory. Sizes are per GPU
and count the partly filled block in full, so that the pool is never overestimated.
"""

from __future__ import annotations

from dataclasses import dataclass

from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.result import MemoryPlan
from oasis_sim.errors import RunFailed
from oasis_sim.units import format_bytes


@dataclass(frozen=True)
class Footprint:
    """Give the bytes of one request as a function of its context, per GPU.

    dense = dense_token (context + block) + draft_token context
    sparse = sparse_fixed + (compressed_token + draft_token) context
    sparse_fixed: working set, and room for generated KV where a scheme sets it aside; with all KV
    in HBM a sparse request holds its whole KV (in compressed_token) beside the index of keys.
    host = host_token context (offloading schemes only)
    """

    block_tokens: int
    dense_token: int
    draft_token: int
    compressed_token: int
    sparse_fixed: int
    host_token: int

    @property
    def dense_growth(self) -> int:
        """Return the HBM bytes that one more token of a dense request takes."""
        return self.dense_token + self.draft_token

    @property
    def sparse_growth(self) -> int:
        """Return the HBM bytes that one more token of a sparse request takes."""
        return self.compressed_token + self.draft_token

    def dense_bytes(self, context: int) -> int:
        """Return the HBM bytes of a dense request with `context` tokens."""
        return self.dense_token * (context + self.block_tokens) + self.draft_token * context

    def sparse_bytes(self, context: int) -> int:
        """Return the HBM bytes of a sparse request with `context` tokens."""
        return self.sparse_fixed + (self.compressed_token + self.draft_token) * context

    def host_bytes(self, context: int) -> int:
        """Return the host bytes of a request with `context` tokens."""
        return self.host_token * context


def footprint(cost: CostModel) -> Footprint:
    """Return the footprint of a request under the cost model's scheme and GPU share."""
    share, scheme = cost.share, cost.scheme
    layers = share.model.layers
    per_block = cost.scan_bytes_per_block() * layers if scheme.compressed_keys else 0
    per_token, per_request = share.key_factor_bytes_layer(scheme)
    index_token = -(-per_block // scheme.block_tokens) + per_token * layers
    fixed = per_request * layers
    if scheme.offload:
        resident = (scheme.pool_blocks + scheme.reserved_blocks) * scheme.block_tokens
        fixed += (resident + scheme.generation_buffer_tokens) * share.kv_bytes_token
    else:
        index_token += share.kv_bytes_token
        fixed += scheme.block_tokens * share.kv_bytes_token
    return Footprint(
        block_tokens=scheme.block_tokens,
        dense_token=share.kv_bytes_token,
        draft_token=share.draft_bytes_token(scheme),
        compressed_token=index_token,
        sparse_fixed=fixed,
        host_token=share.host_bytes_token(scheme),
    )


def plan_memory(cost: CostModel, context: int, host_bytes: int | None = None) -> MemoryPlan:
    """Resolve the KV pool of one GPU and check that it can exist at all.

    `context` is the length at which the request sizes are given, `host_bytes` overrides the host
    memory that the profile gives to one GPU.
    Raises RunFailed, with the arithmetic, when weights and reserve leave no room for KV.
    """
    profile, costs = cost.profile, cost.costs
    usable = costs.usable_bytes(profile.gpu.hbm_bytes)
    weights = cost.share.weight_bytes
    reserved = costs.reserved_per_gpu(cost.share.tp)
    pool = usable - weights - reserved
    if pool <= 0:
        raise RunFailed(
            f"{cost.share.model.name} does not fit on {profile.name} with tp={cost.share.tp}: "
            f"usable HBM {format_bytes(usable, binary=True)} "
            f"- weights {format_bytes(weights, binary=True)} "
            f"- reserved {format_bytes(reserved, binary=True)} leaves no room for KV; "
            "use more GPUs (--tp) or a larger card"
        )
    sizes = footprint(cost)
    dense = sizes.dense_bytes(context)
    return MemoryPlan(
        hbm_capacity_bytes=profile.gpu.hbm_bytes,
        hbm_usable_bytes=usable,
        weights_bytes=weights,
        reserved_bytes=reserved,
        kv_pool_bytes=pool,
        host_capacity_bytes=profile.host.kv_bytes if host_bytes is None else host_bytes,
        dense_request_bytes=dense,
        sparse_request_bytes=sizes.sparse_bytes(context) if cost.scheme.selects else dense,
        host_request_bytes=sizes.host_bytes(context),
    )


def shortage(hbm: int, hbm_room: int, host: int, host_room: int) -> tuple[str, str]:
    """Say of which memory more is needed than there is, and what helps; sizes in bytes.

    `host` is 0 where the scheme keeps nothing in host memory.
    """
    lacking, helps = [], ["shorten the context"]
    if hbm > hbm_room:
        lacking.append(
            f"{format_bytes(hbm, binary=True)} of HBM where the KV pool has "
            f"{format_bytes(hbm_room, binary=True)}"
        )
        helps.append("use more GPUs (--tp)")
        if not host:
            helps.append("choose a scheme that keeps KV in host memory (--scheme)")
    if host > host_room:
        lacking.append(
            f"{format_bytes(host, binary=True)} of host memory where KV may take "
            f"{format_bytes(host_room, binary=True)}"
        )
        helps.append("give KV more host memory (--host-memory)")
    return ", and ".join(lacking), f"{', '.join(helps[:-1])} or {helps[-1]}"


class Pool:
    """Count bytes in use of one tier; never above its capacity."""

    def __init__(self, name: str, capacity_bytes: int) -> None:
        self.name = name
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.peak_bytes = 0

    @property
    def free_bytes(self) -> int:
        """Return the bytes that are not in use."""
        return self.capacity_bytes - self.used_bytes

    def change(self, delta_bytes: int) -> None:
        """Take (or, if negative, give back) bytes."""
        self.used_bytes += delta_bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        self.check()

    def check(self) -> None:
        """Raise RunFailed if the pool holds more than it can or less than nothing."""
        if not 0 <= self.used_bytes <= self.capacity_bytes:
            raise RunFailed(
                f"{self.name}: {self.used_bytes} bytes in use of {self.capacity_bytes}; "
                "this is a fault of the simulator, please report it"
            )
