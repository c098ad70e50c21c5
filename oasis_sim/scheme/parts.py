"""The parts of a KV cache scheme, and the sizes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class SchemeParts:
    """Combine the parts of a scheme.

    offload: full KV in host memory, working set in HBM; False keeps all KV in HBM and attends
        all of it (dense), or what the scan of `compressed_keys` selects (Quest).
    predictor: whose query selects the blocks. `draft` is a draft token run beside the real one,
        `previous` the token before, `current` the token itself, `oracle` knows the next token.
    lookahead: `one_step` fetches for the next step in the background, `one_layer` for the next
        layer of the same step (InfiniGen), `none` fetches on demand, on the critical path.
    draft_row: a draft row runs beside each real row (doubles the rows of linear layers).
    speculative: a draft that the trace accepts is kept, and the request goes on two tokens; the
        prediction is then for the token after both.
    unit: what one transfer moves; `token` means blocks of one token.
    budget_tokens: tokens per layer and KV head that the selection may spend.
    pool_factor: resident slots as a multiple of the budget.
    sink_blocks, recent_blocks: first and newest blocks that are always resident (the newest one
        is the block being filled); `recent_in_budget` takes both out of the budget.
    fetch_ratio: admissions per layer, head and step as a fraction of the budget (None: all);
        cap_blocks: the same as a number. Give one of them at most.
    adaptive_cap: admit in each step as many blocks as hide under it, instead of a fixed cap.
    cap_over: `layer` lets the heads of a layer share their caps: what one does not need, others
        fetch. `model` lets the layers share them too: what they may fetch together is split over
        them by their misses of the step before.
    evict: which block outside the selection leaves: `least_recently_selected`, `least_attended`
        (attention gave it the least of what it read) or, as a bound, the one that is selected again
        last (`belady`).
    admit: `all` misses that the cap allows, or those that are `gainful`: a head fetches until the
        next victim has held more attention than its fetched blocks did.
    correction_share: share of a prediction's fetches that is made on the critical path, because
        the query moved too far from the one that predicted (FreeKV).
    reuse: blocks that are resident are not fetched again; False fetches the whole selection.
    compressed_keys: an index of all keys stays in HBM and is scanned in each step.
    key_index_share: its size as a share of the keys (0: min and max of each block, 2 / block).
    key_rank: keys of every token stay in HBM as factors of this rank over all KV heads, and only
        values are fetched (ShadowKV; 0: no factors, keys and values are fetched).
    draft_kv_bytes_per_token: KV of the draft model, resident in HBM (None: that of one layer of the
        model, as an EAGLE-3 head has; 0: a drafter without KV).
    transport: how blocks cross PCIe.
    fetch_unit_tokens: tokens of one head that one copy moves (0: a whole block). The trace's
        blocks stand in for units of other sizes; the rate over the link is that of the unit.
    host_bytes_per_element: bytes of a key or value element in host memory and on the link (0: as
        in HBM; 1: fp8).
    offload_at: when the prompt's KV leaves HBM. `decode`: in the background, once above the
        budget; `prefill`: when prefill ends; `layer`: during prefill, a layer at a time, so that
        HBM never holds a whole prompt.
    generation_buffer_tokens: tokens per request for which HBM is set aside for generated KV.
    """

    name: str
    title: str = ""
    description: str = ""
    offload: bool = True
    predictor: str = "draft"
    lookahead: str = "one_step"
    draft_row: bool = True
    speculative: bool = False
    unit: str = "block"
    block_tokens: int = 16
    budget_tokens: int = 2048
    pool_factor: float = 1.0
    sink_blocks: int = 0
    recent_blocks: int = 1
    recent_in_budget: bool = False
    fetch_ratio: float | None = None
    cap_blocks: int | None = None
    adaptive_cap: bool = False
    cap_over: str = "head"
    correction_share: float = 0.0
    reuse: bool = True
    evict: str = "least_recently_selected"
    admit: str = "all"
    compressed_keys: bool = True
    key_index_share: float = 0.0
    key_rank: int = 0
    draft_kv_bytes_per_token: int | None = None
    transport: str = "sm_gather"
    fetch_unit_tokens: int = 0
    host_bytes_per_element: int = 0
    offload_at: str = "decode"
    generation_buffer_tokens: int = 0

    @property
    def budget_blocks(self) -> int:
        """Return the budget in blocks (K / b)."""
        return self.budget_tokens // self.block_tokens

    @property
    def reserved_blocks(self) -> int:
        """Return how many blocks are always resident."""
        return self.sink_blocks + self.recent_blocks

    @property
    def chosen_blocks(self) -> int:
        """Return the blocks per head that selection may choose (k)."""
        return self.budget_blocks - (self.reserved_blocks if self.recent_in_budget else 0)

    @property
    def pool_blocks(self) -> int:
        """Return the resident slots per head, those of always-resident blocks apart (P >= k)."""
        extra = exact(self.pool_factor) * self.budget_blocks - self.budget_blocks
        return self.chosen_blocks + int(extra)

    @property
    def admission_cap(self) -> int:
        """Return the admissions per layer, head and step (C, at most k)."""
        if self.cap_blocks is not None:
            return min(self.cap_blocks, self.chosen_blocks)
        if self.fetch_ratio is None:
            return self.chosen_blocks
        return min(int(exact(self.fetch_ratio) * self.budget_blocks), self.chosen_blocks)

    @property
    def tokens_per_step_max(self) -> int:
        """Return the most tokens that a request gains in a step."""
        return 2 if self.speculative else 1

    @property
    def selects(self) -> bool:
        """Say whether a head attends a selection of its blocks instead of all of them."""
        return self.offload or self.compressed_keys

    @property
    def index_share(self) -> float:
        """Return the scanned index of keys as a share of all keys (min and max: 2 / block)."""
        return self.key_index_share or 2 / self.block_tokens

    @property
    def on_demand(self) -> bool:
        """Say whether blocks are fetched on the critical path."""
        return self.lookahead == "none"

    @property
    def attended_tokens_max(self) -> int:
        """Return the most tokens that a head attends: chosen and always-resident blocks."""
        return (self.chosen_blocks + self.reserved_blocks) * self.block_tokens


def exact(number: float) -> Fraction:
    """Return the decimal number that was written (0.29, not the nearest binary one)."""
    return Fraction(repr(number))
