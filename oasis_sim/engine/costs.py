"""From bytes and operations to picoseconds: one engine's cost model on one GPU.

Every stage is its roofline, max(bytes / bandwidth, FLOPs / peak), divided by the efficiency that
the engine reaches there (`EngineCosts`). Byte and operation counts follow from the model's
shape alone and are given per GPU under tensor parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass

from oasis_sim.curve import Curve
from oasis_sim.hardware import EngineCosts, HardwareProfile, Slowdown, Transport
from oasis_sim.model import ModelShape
from oasis_sim.scheme import Scheme
from oasis_sim.units import PS_PER_S

BYTES_PER_ELEMENT = 2  # BF16 activations, keys and values
BESIDE_NOTHING = Slowdown(linear=Curve.constant(1.0), attention=1.0, prediction=1.0)


@dataclass(frozen=True)
class LinearPart:
    """Count one group of linear layers: weights that always stream, and routed experts.

    `name` is a field of `LinearEfficiency`. `params` are read and used by every row. Of `experts`
    each row uses `experts_per_row`, with `expert_params` parameters each; an expert is read once
    however many rows use it.
    """

    name: str
    params: float
    experts: int = 0
    experts_per_row: int = 0
    expert_params: float = 0.0

    def expert_bytes(self, rows: int) -> float:
        """Return the bytes of the experts that `rows` rows reach (routing taken as uniform)."""
        if not self.experts:
            return 0.0
        idle = (1.0 - self.experts_per_row / self.experts) ** rows
        return self.experts * (1.0 - idle) * self.expert_params * BYTES_PER_ELEMENT

    def bytes_read(self, rows: int) -> float:
        """Return the weight bytes that `rows` rows read."""
        return self.params * BYTES_PER_ELEMENT + self.expert_bytes(rows)

    def expert_flops(self, rows: int) -> float:
        """Return the operations of routed experts, a multiply-add counted as two."""
        return 2.0 * rows * self.experts_per_row * self.expert_params

    def flops(self, rows: int) -> float:
        """Return the operations for `rows` rows, a multiply-add counted as two."""
        return 2.0 * rows * self.params + self.expert_flops(rows)


class GpuShare:
    """Say what one of `tp` GPUs holds and computes of a model.

    KV heads are split over the GPUs and held by several when there are fewer heads than GPUs.
    """

    def __init__(self, model: ModelShape, tp: int) -> None:
        self.model = model
        self.tp = tp
        self.kv_heads = model.kv_heads_per_gpu(tp)
        self.query_heads = model.query_heads / tp
        hidden, d = model.hidden, model.head_dim
        self.qkv = LinearPart("qkv", hidden * d * (self.query_heads + 2 * self.kv_heads))
        output = hidden * d * self.query_heads
        if model.experts:
            self.output_ffn = LinearPart(
                "output_ffn",
                output + hidden * model.experts / tp,
                model.experts,
                model.experts_per_token,
                3 * hidden * model.moe_intermediate / tp,
            )
        else:
            ffn = 3 * hidden * model.intermediate / tp
            self.output_ffn = LinearPart("output_ffn", output + ffn)
        self.lm_head = LinearPart("lm_head", hidden * model.vocab / tp)
        self.kv_bytes_layer = 2 * self.kv_heads * d * model.bytes_per_kv
        self.kv_bytes_token = self.kv_bytes_layer * model.layers
        self.weight_bytes = -(-model.weight_bytes // tp)

    def unit_bytes(self, scheme: Scheme) -> int:
        """Return the bytes of one copy over the host link: a unit of one head of one layer."""
        return self._host_bytes_head(scheme) * (scheme.fetch_unit_tokens or scheme.block_tokens)

    def block_bytes(self, scheme: Scheme) -> int:
        """Return the bytes over the host link for one block of one KV head of one layer."""
        return self._host_bytes_head(scheme) * scheme.block_tokens

    def host_bytes_token(self, scheme: Scheme) -> int:
        """Return the GPU's part of one token's bytes in host memory, all layers and KV heads.

        A head that several GPUs hold is copied to the host, and kept there, once; a GPU's part is
        rounded up to whole bytes.
        """
        if not scheme.offload:
            return 0
        whole = self._host_bytes_head(scheme) * self.model.kv_heads * self.model.layers
        return -(-whole // self.tp)

    def _host_bytes_head(self, scheme: Scheme) -> int:
        """Return the bytes of one token of one head in host memory: K and V, or V alone."""
        element = scheme.host_bytes_per_element or self.model.bytes_per_kv
        return (1 if scheme.key_rank else 2) * self.model.head_dim * element

    def draft_bytes_token(self, scheme: Scheme) -> int:
        """Return the bytes of the draft model's KV of one token.

        An EAGLE-3 head is one decoder layer with the KV heads of its target (arXiv 2503.01840;
        checkpoints for Qwen3-8B and Qwen3-235B-A22B: 8 and 4 heads of 128).
        """
        if not scheme.draft_row:
            return 0
        if scheme.draft_kv_bytes_per_token is None:
            return self.kv_bytes_layer
        return -(-scheme.draft_kv_bytes_per_token // self.tp)

    def key_factor_bytes_layer(self, scheme: Scheme) -> tuple[int, int]:
        """Return bytes per layer of the low-rank factors of keys: per token, and per request."""
        width = self.kv_heads * self.model.head_dim
        size = scheme.key_rank * self.model.bytes_per_kv
        return size, size * width


class CostModel:
    """Price the stages of a step for one profile, engine, model, scheme and GPU count."""

    def __init__(
        self, profile: HardwareProfile, engine: str, model: ModelShape, scheme: Scheme, tp: int
    ) -> None:
        self.profile = profile
        self.costs: EngineCosts = profile.engine(engine)
        self.scheme = scheme
        self.share = GpuShare(model, tp)
        self.transport: Transport = self.costs.transport(scheme.transport)
        self.rows_per_request = 2 if scheme.draft_row else 1
        self.predicts_inline = self.costs.prediction_inline and not scheme.on_demand

    def linear_ps(self, part: LinearPart, rows: int) -> int:
        """Return the time of one group of linear layers with `rows` rows."""
        if rows == 0:
            return 0
        always = self._roofline_s(part.params * BYTES_PER_ELEMENT, 2.0 * rows * part.params)
        seconds = always / self.costs.linear_efficiency.of(part.name).at(rows)
        if part.experts:
            routed = self._roofline_s(part.expert_bytes(rows), part.expert_flops(rows))
            each = rows * part.experts_per_row / part.experts
            seconds += routed / self.costs.expert_efficiency.at(each)
        return round(seconds * PS_PER_S)

    def head_rows(self, rows: int) -> int:
        """Return how many of the rows go through the LM head."""
        return rows // self.rows_per_request if self.costs.lm_head_per_request else rows

    def _roofline_s(self, size_bytes: float, flops: float) -> float:
        gpu = self.profile.gpu
        return max(size_bytes / gpu.hbm_bytes_per_s, flops / gpu.bf16_flops_per_s)

    def collective_ps(self, rows: int) -> int:
        """Return the time of the two all-reduces of one layer (ring: 2 (n-1)/n of the bytes)."""
        tp = self.share.tp
        if tp == 1 or rows == 0:
            return 0
        payload = 2 * (tp - 1) / tp * rows * self.share.model.hidden * BYTES_PER_ELEMENT
        once = payload / self.profile.gpu_link.usable_bytes_per_s
        return 2 * (self.costs.collective_ps + round(once * PS_PER_S))

    def draft_ps(self, rows: int, context_tokens: int) -> int:
        """Return the time of the draft model's forward: `rows` rows, all contexts together."""
        if not self.scheme.draft_row or rows == 0:
            return 0
        layer = self.linear_ps(self.share.qkv, rows) + self.linear_ps(self.share.output_ffn, rows)
        read = self.draft_read_ps(context_tokens)
        return round(layer * self.costs.draft_layers.at(rows) + read)

    def draft_read_ps(self, context_tokens: int) -> float:
        """Return the part of it that reads the draft model's own KV, where that is told apart."""
        if not self.costs.draft_reads_kv:
            return 0.0
        size = context_tokens * self.share.draft_bytes_token(self.scheme)
        efficiency = self.costs.dense_attention_efficiency.at(max(size, 1.0))
        return size * self.hbm_ps_per_byte(efficiency)

    def hbm_ps_per_byte(self, efficiency: float) -> float:
        """Return picoseconds per byte read from HBM at a share of its bandwidth."""
        return PS_PER_S / (self.profile.gpu.hbm_bytes_per_s * efficiency)

    def scan_bytes_per_block(self) -> int:
        """Return the bytes of the index of keys of one block, all KV heads of the GPU."""
        keys = self.share.model.head_dim * self.share.kv_heads * self.scheme.block_tokens
        return round(keys * BYTES_PER_ELEMENT * self.scheme.index_share)

    def transfer_ps_per_byte(self) -> float:
        """Return picoseconds per byte of this scheme's units over the host link."""
        unit = self.share.unit_bytes(self.scheme)
        return PS_PER_S / self.transport.bytes_per_s.at(unit)

    def d2h_ps(self, size_bytes: int) -> int:
        """Return the time to copy `size_bytes` to the host in one direction of the link."""
        return round(size_bytes / self.profile.pcie.usable_bytes_per_s * PS_PER_S)

    def prefill_flops(self, start: int, tokens: int) -> float:
        """Return FLOPs per GPU of a prefill chunk of `tokens` tokens after `start` others.

        Linear layers 2 x active parameters per token, causal attention 4 x heads x d per pair.
        """
        share, model = self.share, self.share.model
        layer = share.qkv.flops(tokens) + share.output_ffn.flops(tokens)
        pairs = tokens * (start + (tokens + 1) / 2)
        attention = 4.0 * share.query_heads * model.head_dim * pairs
        return model.layers * (layer + attention)

    def prefill_ps(self, start: int, tokens: int) -> int:
        """Return the time of one prefill chunk: compute at the prefill efficiency, or weights."""
        gpu, model = self.profile.gpu, self.share.model
        compute = self.prefill_flops(start, tokens) / (
            gpu.bf16_flops_per_s * self.costs.prefill.efficiency
        )
        weights = self.share.qkv.bytes_read(tokens) + self.share.output_ffn.bytes_read(tokens)
        streamed = model.layers * weights / gpu.hbm_bytes_per_s
        beside = model.layers * tokens * self.costs.prefill.token_layer_ps
        return round(max(compute, streamed) * PS_PER_S + beside)

    def launch_layer_ps(self) -> int:
        """Return the launch gaps of one layer's foreground kernels."""
        return self.costs.launch.kernels_per_layer * self.costs.launch.gap_ps

    def launch_step_ps(self, requests: int) -> int:
        """Return host work per step and per running request."""
        launch = self.costs.launch
        if self.scheme.offload:
            return launch.step_ps + launch.request_ps * requests
        return launch.dense_step_ps + launch.dense_request_ps * requests

    def slowdowns(self, rows: int) -> tuple[tuple[float, ...], ...]:
        """Return factors for linear layers, attention and prediction.

        Each beside transfer, prediction and selection; nothing slows prediction but a transfer.
        """
        neighbours: tuple[Slowdown, ...] = (
            self.transport.slowdown,
            self.costs.prediction_slowdown or BESIDE_NOTHING,
            self.costs.selection_slowdown,
        )
        linear = tuple(n.linear.at(max(rows, 1)) for n in neighbours)
        attention = tuple(n.attention for n in neighbours)
        return linear, attention, (self.transport.slowdown.prediction, 1.0, 1.0)
