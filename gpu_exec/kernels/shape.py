"""The model numbers that set the shapes of one decode step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

HEAD_DIM = 128
"""The head dimension of the captured step."""
HEAD_DIMS = (64, 128, 256)
"""Those of attention, scan and append; select and gather know none."""


@dataclass(frozen=True)
class StepShape:
    """Hold the model numbers that set the shapes of one decode step."""

    layers: int
    hidden: int
    intermediate: int
    query_heads: int
    kv_heads: int
    vocab: int
    head_dim: int = HEAD_DIM
    draft_vocab: int = 32_000

    @classmethod
    def of_model(cls, model: Any) -> StepShape:
        """Take the shape of an ``oasis_sim.model.ModelShape``."""
        return cls(
            layers=model.layers,
            hidden=model.hidden,
            intermediate=model.intermediate,
            query_heads=model.query_heads,
            kv_heads=model.kv_heads,
            vocab=model.vocab,
            head_dim=model.head_dim,
        )

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.query_heads // self.kv_heads

    @property
    def qkv_width(self) -> int:
        """Columns of the fused query, key and value projection."""
        return (self.query_heads + 2 * self.kv_heads) * self.head_dim


QWEN3_8B = StepShape(
    layers=36, hidden=4096, intermediate=12288, query_heads=32, kv_heads=8, vocab=151_936
)
