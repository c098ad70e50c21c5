"""A machine as the simulator sees it: physical limits, and cost models of engines on top.

A `HardwareProfile` holds what the hardware can do at most, each number with its source. How close
an engine comes to those limits is a separate matter, held by one `EngineCosts` per engine:
`roofline` (ideal), `vllm` (calibrated to published runs) and `gpu_exec` (calibrated by
micro-benchmarks).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from oasis_sim.curve import Curve
from oasis_sim.errors import InputError, UsageError


@dataclass(frozen=True)
class Gpu:
    """Hold the limits of one GPU: dense BF16 FLOP/s, HBM bytes and bytes per second.

    `power_w` is the most that the board is designed to draw, None where no source is known.
    """

    title: str
    sms: int
    bf16_flops_per_s: float
    hbm_bytes: int
    hbm_bytes_per_s: float
    power_w: float | None = None


@dataclass(frozen=True)
class Link:
    """Hold one direction of a link: bytes per second (nominal and usable) and latency.

    `bytes_per_s` is what the standard or the datasheet promises and bounds every prediction;
    `usable_bytes_per_s` is what one large transfer reaches.
    """

    bytes_per_s: float
    usable_bytes_per_s: float
    latency_ps: int


@dataclass(frozen=True)
class Host:
    """Hold one GPU's share of the host: bytes that may be pinned for KV, and DRAM bandwidth."""

    kv_bytes: int
    dram_bytes_per_s: float


@dataclass(frozen=True)
class Slowdown:
    """Say how much longer work takes beside a busy neighbour (1.0: not at all).

    `linear` depends on the rows of the linear layers; the others are single factors.
    """

    linear: Curve
    attention: float
    prediction: float


NO_CHANGE = Curve.constant(1.0)


@dataclass(frozen=True)
class Transport:
    """Describe one way to move blocks from host memory to the GPU.

    `bytes_per_s` is the rate by unit size in bytes; `fixed_ps` the cost of one layer's transfer
    however small; `slowdown` what it does to the work beside it. `idle_speedup` is how much faster
    it is, by unit size, once a step's other work is done (in engines that wait for it there).
    `linear_covered` bounds what it does to linear layers, by rows: their slowdown beside a transfer
    that covers them whole (None: `slowdown` alone). `qkv_slowdown` is that of QKV, by rows (None:
    as other linear layers).
    """

    bytes_per_s: Curve
    fixed_ps: int
    slowdown: Slowdown
    idle_speedup: Curve = NO_CHANGE
    linear_covered: Curve | None = None
    qkv_slowdown: Curve | None = None


@dataclass(frozen=True)
class LinearEfficiency:
    """Say what share of its roofline each group of linear layers reaches, by rows."""

    qkv: Curve
    output_ffn: Curve
    lm_head: Curve

    @classmethod
    def same(cls, share: Curve) -> LinearEfficiency:
        """Return the efficiency of groups that all reach the same share."""
        return cls(share, share, share)

    def of(self, part: str) -> Curve:
        """Return the curve of the group called `part`, the name of one of the fields."""
        curve: Curve = getattr(self, part)
        return curve


@dataclass(frozen=True)
class Selection:
    """Cost of top-K, difference, cap and eviction of one layer.

    `per_head_ps` and `per_candidate_ps` are for each request and KV head, and each block that is
    scored for one. Where these are selected at the same time, a layer takes `per_block_ps` for each
    block of a request (the mean over requests).
    """

    fixed_ps: int
    per_head_ps: float
    per_candidate_ps: float
    per_block_ps: float = 0.0


@dataclass(frozen=True)
class Launch:
    """Costs outside the kernels: gaps between kernels, host work per step and per request.

    The two `dense_` ones are for schemes that keep all KV in HBM (whole CUDA graphs, plain block
    tables), the others for schemes that offload. With `join_streams` a step ends when all its
    streams have, as one CUDA graph per step does.
    """

    gap_ps: int
    kernels_per_layer: int
    step_ps: int
    request_ps: int
    dense_step_ps: int
    dense_request_ps: int
    join_streams: bool = False


@dataclass(frozen=True)
class Prefill:
    """Rate of dense prefill (share of the GPU's peak FLOP/s) and tokens per chunk.

    `token_layer_ps` is work per prompt token and layer beside the model itself, such as
    factorising keys or writing KV to the host.
    """

    efficiency: float
    chunk_tokens: int
    token_layer_ps: int = 0


@dataclass(frozen=True)
class EngineCosts:
    """Say how one engine uses the hardware.

    `linear_efficiency` is a share of the roofline, by rows, and `expert_efficiency` the same for
    routed experts, by rows per expert; the attention and scan efficiencies are shares of HBM
    bandwidth, by bytes read in one kernel. `draft_layers` is the draft model's forward in units
    of one layer of the target, by rows. `hbm_share` of the card may be used, of which
    `reserved_bytes` (activations, graphs) and a GPU's part of `reserved_split_bytes` (draft weights
    and whatever else tensor parallelism divides) are not for KV.
    With `draft_reads_kv` the draft's attention over its own KV is priced as dense attention beside
    `draft_layers`; without, those layers include it.
    With `static_batches` all requests of a batch start together and the next batch starts when
    the last of them has ended. An engine that is not `tensor_parallel` runs on one GPU.
    With `collective_apart` collectives keep their pace beside transfers; without, these slow them
    as they slow linear layers.
    With `lm_head_per_request` the LM head runs on one row of each request; without, on draft rows
    too.
    With `prediction_inline` prediction runs between QKV and attention, as part of the foreground;
    without, beside them, where it slows them by `prediction_slowdown` (None: not).
    """

    name: str
    source: str
    linear_efficiency: LinearEfficiency
    expert_efficiency: Curve
    attention_efficiency: Curve
    dense_attention_efficiency: Curve
    scan_efficiency: Curve
    selection: Selection
    draft_layers: Curve
    launch: Launch
    prefill: Prefill
    collective_ps: int
    transports: Mapping[str, Transport]
    prediction_slowdown: Slowdown | None
    selection_slowdown: Slowdown
    hbm_share: float
    reserved_bytes: int
    reserved_split_bytes: int = 0
    draft_reads_kv: bool = False
    static_batches: bool = False
    tensor_parallel: bool = True
    collective_apart: bool = False
    prediction_inline: bool = False
    lm_head_per_request: bool = False

    def reserved_per_gpu(self, tp: int) -> int:
        """Return the HBM bytes of one of `tp` GPUs that are neither weights nor KV."""
        return self.reserved_bytes - -self.reserved_split_bytes // tp

    def usable_bytes(self, hbm_bytes: int) -> int:
        """Return what the engine uses of a GPU's HBM, what it reserves included."""
        return int(hbm_bytes * self.hbm_share)

    def transport(self, name: str) -> Transport:
        """Return the transport called `name` or raise UsageError."""
        if name not in self.transports:
            known = ", ".join(sorted(self.transports))
            raise UsageError(
                f"engine {self.name} has no transport {name!r} on this hardware; choose of: {known}"
            )
        return self.transports[name]


@dataclass(frozen=True)
class HardwareProfile:
    """Collect the tiers of one machine (per GPU) and the engines known on it.

    `sources` maps the path of each number ("gpu.hbm_bandwidth") to where it comes from. Without
    `nvlink` a GPU has no link to another one. The network between hosts is a profile of its own
    (`oasis_sim.network`).
    """

    name: str
    origin: str
    gpu: Gpu
    pcie: Link
    nvlink: Link | None
    host: Host
    engines: Mapping[str, EngineCosts]
    sources: Mapping[str, str]

    @property
    def gpu_link(self) -> Link:
        """Return the link between GPUs; raise InputError where the profile has none."""
        if self.nvlink is None:
            raise InputError(
                f"profile {self.name} has no link between GPUs, which tensor parallelism needs",
                field="nvlink",
                fix="add the section to a copy of the profile, or use one GPU",
            )
        return self.nvlink

    def engine(self, name: str) -> EngineCosts:
        """Return the cost model called `name` or raise UsageError."""
        if name not in self.engines:
            known = ", ".join(sorted(self.engines))
            raise UsageError(f"profile {self.name} has no engine {name!r}; choose one of: {known}")
        return self.engines[name]
