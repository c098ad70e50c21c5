"""Time per token of on-demand retrieval, stage after stage (section 3 of arXiv 2608.08097)."""

from __future__ import annotations

from dataclasses import dataclass

from oasis_sim.hardware import HardwareProfile
from oasis_sim.model import ModelShape

MISS_SHARE = 0.10
"""Share of the attended KV that has to be fetched in each step (the paper's assumption)."""


@dataclass(frozen=True)
class Retrieval:
    """Hold the three serial stages of a decode step, in seconds.

    w = weight bytes / HBM bandwidth, k = B S kv / HBM bandwidth, and
    r = miss share B S kv / PCIe bandwidth, for a batch B, S attended tokens and kv bytes of KV
    per token; bandwidths are nominal. TPOT = w + k + r.
    """

    weights_s: float
    attention_s: float
    retrieval_s: float

    @property
    def tpot_s(self) -> float:
        """Return the time per token."""
        return self.weights_s + self.attention_s + self.retrieval_s

    def share_pct(self, stage_s: float) -> float:
        """Return the share of a stage in the time per token, in percent."""
        return 100.0 * stage_s / self.tpot_s


def serial_retrieval(
    profile: HardwareProfile,
    model: ModelShape,
    batch: int,
    attended_tokens: int,
    *,
    miss_share: float = MISS_SHARE,
    tp: int = 1,
) -> Retrieval:
    """Return the stages at nominal bandwidths; `tp` GPUs share weights and KV heads."""
    kv_bytes = model.kv_bytes_per_token * model.kv_heads_per_gpu(tp) // model.kv_heads
    attended_bytes = batch * attended_tokens * kv_bytes
    hbm = profile.gpu.hbm_bytes_per_s
    return Retrieval(
        weights_s=model.weight_bytes / tp / hbm,
        attention_s=attended_bytes / hbm,
        retrieval_s=miss_share * attended_bytes / profile.pcie.bytes_per_s,
    )
