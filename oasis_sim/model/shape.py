"""The shape of a decoder-only transformer: what decides its bytes and its arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

KEY_AND_VALUE = 2


@dataclass(frozen=True)
class ModelShape:
    """Describe a decoder with grouped-query attention and gated feed-forward layers.

    `intermediate` is the width of a dense feed-forward layer. A mixture of experts has
    `experts` > 0: every layer then holds that many experts of width `moe_intermediate` and a
    router, and a token passes through `experts_per_token` of them. `qk_norm` adds a norm over
    each head's query and key, `qkv_bias` a bias to the three projections.
    """

    name: str
    layers: int
    hidden: int
    intermediate: int
    query_heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied_embeddings: bool
    max_context: int
    experts: int = 0
    experts_per_token: int = 0
    moe_intermediate: int = 0
    qk_norm: bool = False
    qkv_bias: bool = False
    bytes_per_weight: int = 2
    bytes_per_kv: int = 2

    @property
    def kv_bytes_per_token_layer(self) -> int:
        """Return the bytes of keys and values of one token in one layer, all KV heads."""
        return KEY_AND_VALUE * self.kv_heads * self.head_dim * self.bytes_per_kv

    @property
    def kv_bytes_per_token(self) -> int:
        """Return the bytes of keys and values of one token in all layers."""
        return self.layers * self.kv_bytes_per_token_layer

    def block_head_bytes(self, block_tokens: int) -> int:
        """Return the bytes of K and V of one block in one layer and one KV head."""
        return KEY_AND_VALUE * self.head_dim * self.bytes_per_kv * block_tokens

    def kv_heads_per_gpu(self, tp: int) -> int:
        """Return the KV heads that one of `tp` GPUs holds; a head may be held by several."""
        return -(-self.kv_heads // tp)

    def kv_heads_of_gpu(self, rank: int, tp: int) -> slice:
        """Return which KV heads GPU `rank` of `tp` holds, as vLLM spreads them."""
        first = rank * self.kv_heads // tp
        return slice(first, first + self.kv_heads_per_gpu(tp))

    @property
    def attention_params(self) -> int:
        """Count the parameters of attention in one layer: projections, biases, head norms."""
        qkv_width = (self.query_heads + 2 * self.kv_heads) * self.head_dim
        projections = self.hidden * (qkv_width + self.query_heads * self.head_dim)
        norms = 2 * self.head_dim if self.qk_norm else 0
        return projections + norms + (qkv_width if self.qkv_bias else 0)

    @property
    def expert_params(self) -> int:
        """Count the parameters of one expert (0 without experts)."""
        return 3 * self.hidden * self.moe_intermediate if self.experts else 0

    @property
    def layer_params(self) -> int:
        """Count all parameters of one layer, its two norms included."""
        return self._layer_params(self.experts)

    @property
    def layer_active_params(self) -> int:
        """Count the parameters of one layer that one token passes through."""
        return self._layer_params(self.experts_per_token)

    def _layer_params(self, experts: int) -> int:
        shared = self.attention_params + 2 * self.hidden
        if not self.experts:
            return shared + 3 * self.hidden * self.intermediate
        return shared + self.hidden * self.experts + experts * self.expert_params

    @property
    def lm_head_params(self) -> int:
        """Count the parameters of the output projection (the embedding's when tied)."""
        return self.vocab * self.hidden

    @property
    def params(self) -> int:
        """Count all parameters."""
        return self._params(self.layer_params)

    @property
    def active_params(self) -> int:
        """Count the parameters that one token passes through, the whole embedding included."""
        return self._params(self.layer_active_params)

    def _params(self, layer_params: int) -> int:
        tables = 1 if self.tied_embeddings else 2
        return self.layers * layer_params + tables * self.vocab * self.hidden + self.hidden

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of all weights."""
        return self.params * self.bytes_per_weight

    def expected_experts(self, rows: int) -> float:
        """Return how many experts of a layer `rows` tokens reach, if each picks at random.

        E (1 - (1 - k/E)^rows): the mean number of distinct experts when every token draws k of
        E without regard to the others. Real routing is less even and reaches fewer.
        """
        if not self.experts:
            return 0.0
        missed = (1.0 - self.experts_per_token / self.experts) ** rows
        return self.experts * (1.0 - missed)

    def linear_shapes(self) -> tuple[tuple[str, int, int], ...]:
        """Return (name, outputs, inputs) of the linear layers that one token passes in a layer.

        A mixture of experts appears as one gated layer as wide as the experts of a token.
        """
        width = self.moe_intermediate * self.experts_per_token or self.intermediate
        query_width = self.query_heads * self.head_dim
        return (
            ("qkv", query_width + 2 * self.kv_heads * self.head_dim, self.hidden),
            ("o", self.hidden, query_width),
            ("gate_up", 2 * width, self.hidden),
            ("down", self.hidden, width),
        )

    def tp_problem(self, tp: int) -> str | None:
        """Say why `tp` GPUs cannot share the heads; None when they can."""
        if tp < 1 or self.query_heads % tp:
            return f"{tp} does not divide the {self.query_heads} query heads of {self.name}"
        if self.kv_heads % tp and tp % self.kv_heads:
            return f"{tp} and the {self.kv_heads} KV heads of {self.name} do not divide each other"
        return None
