"""Figure 2: the share of on-demand retrieval in the time per token of Qwen3-32B."""

from __future__ import annotations

from oasis_sim.hardware import HardwareProfile
from oasis_sim.model import load_model
from oasis_sim.paper.comparison import Comparison, Row
from oasis_sim.paper.published import Published
from oasis_sim.paper.retrieval import MISS_SHARE, serial_retrieval

NAME = "fig2"
TITLE = "Figure 2: share of on-demand retrieval in the time per token, Qwen3-32B"
MODEL = "qwen3-32b"
ATTENDED_TOKENS = (1024, 2048, 4096, 8192)
BATCHES = (8, 16, 32, 64)
METRIC, UNIT = "retrieval_share_pct", "percent"
NOTES = (
    "formula: w = weights / HBM, k = B S kv / HBM, "
    f"r = {MISS_SHARE:.2f} B S kv / PCIe, share = r / (w + k + r), at nominal bandwidths",
)


def compare(profile: HardwareProfile, published: Published) -> Comparison:
    """Compute the sixteen shares in whole percent."""
    model = load_model(MODEL)
    rows = []
    for attended in ATTENDED_TOKENS:
        for batch in BATCHES:
            stages = serial_retrieval(profile, model, batch, attended)
            exact = stages.share_pct(stages.retrieval_s)
            keys: dict[str, str | float] = {"attended_tokens": attended, "batch": batch}
            known = published.value(NAME, keys, METRIC)
            row = Row(keys, METRIC, UNIT, known, round(exact), {"simulated_exact": exact})
            rows.append(row)
    return Comparison(NAME, TITLE, tuple(rows), NOTES)
