"""A KV cache scheme as data: what is predicted, fetched, kept and waited for."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from fractions import Fraction

from oasis_sim.errors import InputError
from oasis_sim.fileio import raise_all

WORDS: dict[str, tuple[str, ...]] = {
    "predictor": ("draft", "previous", "current", "oracle"),
    "lookahead": ("one_step", "none"),
    "unit": ("block", "token"),
    "evict": ("least_recently_selected",),
    "transport": ("sm_gather", "copy_engine", "naive"),
}
"""The parts that are chosen from a list."""


@dataclass(frozen=True)
class Scheme:
    """Combine the parts of a scheme; parts that contradict each other raise InputError.

    offload: full KV in host memory, working set in HBM; False keeps all KV in HBM and attends
        all of it (dense), and then no other part applies.
    predictor: whose query selects the blocks. `draft` is a draft token run beside the real one,
        `previous` the token before, `current` the token itself, `oracle` knows the next token.
    lookahead: `one_step` fetches for the next step in the background, `none` fetches on demand,
        on the critical path.
    draft_row: a draft row runs beside each real row (doubles the rows of linear layers).
    unit: what one transfer moves; `token` means blocks of one token.
    budget_tokens: tokens per layer and KV head that the selection may spend.
    pool_factor: resident slots as a multiple of the budget.
    sink_blocks, recent_blocks: first and newest blocks that are always resident (the newest one
        is the block being filled); `recent_in_budget` takes both out of the budget.
    fetch_ratio: admissions per layer, head and step as a fraction of the budget (None: all);
        cap_blocks: the same as a number. Give one of them at most.
    compressed_keys: min/max keys of every block stay in HBM and are scanned in each step.
    draft_kv_bytes_per_token: KV of the draft model, resident in HBM.
    transport: how blocks cross PCIe.
    """

    name: str
    title: str = ""
    description: str = ""
    offload: bool = True
    predictor: str = "draft"
    lookahead: str = "one_step"
    draft_row: bool = True
    unit: str = "block"
    block_tokens: int = 16
    budget_tokens: int = 2048
    pool_factor: float = 1.0
    sink_blocks: int = 0
    recent_blocks: int = 1
    recent_in_budget: bool = False
    fetch_ratio: float | None = None
    cap_blocks: int | None = None
    evict: str = "least_recently_selected"
    compressed_keys: bool = True
    draft_kv_bytes_per_token: int = 0
    transport: str = "sm_gather"

    def __post_init__(self) -> None:
        """Refuse contradictory parts, all mistakes at once."""
        raise_all([InputError(problem, field=key) for key, problem in contradictions(self)])

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
    def on_demand(self) -> bool:
        """Say whether blocks are fetched on the critical path."""
        return self.lookahead == "none"

    @property
    def attended_tokens_max(self) -> int:
        """Return the most tokens that a head attends: chosen and always-resident blocks."""
        return (self.chosen_blocks + self.reserved_blocks) * self.block_tokens

    def to_config(self) -> dict[str, str | int | float | bool]:
        """Return the scheme as a scheme file holds it; parts without a value are left out."""
        parts = dataclasses.asdict(self)
        return {key: value for key, value in parts.items() if value not in {None, ""}}


def exact(number: float) -> Fraction:
    """Return the decimal number that was written (0.29, not the nearest binary one)."""
    return Fraction(repr(number))


def contradictions(scheme: Scheme) -> list[tuple[str, str]]:
    """List (part, problem) of all parts that are out of range or contradict each other."""
    found = [*_unknown_words(scheme), *_bad_sizes(scheme)]
    return found or [*_bad_budget(scheme), *_bad_parts(scheme)]


def _unknown_words(scheme: Scheme) -> list[tuple[str, str]]:
    return [
        (key, f"{getattr(scheme, key)!r} is not known; use one of {', '.join(known)}")
        for key, known in WORDS.items()
        if getattr(scheme, key) not in known
    ]


def _bad_sizes(scheme: Scheme) -> list[tuple[str, str]]:
    ranges: dict[str, tuple[float, float]] = {
        "block_tokens": (1, 4096),
        "budget_tokens": (1, 2**24),
        "pool_factor": (1.0, 1024.0),
        "sink_blocks": (0, 2**16),
        "recent_blocks": (1, 2**16),
        "fetch_ratio": (0.0, 1.0),
        "cap_blocks": (0, 2**24),
        "draft_kv_bytes_per_token": (0, 2**24),
    }
    return [
        (key, f"{getattr(scheme, key)!r} is out of range; use {low:g} to {high:g}")
        for key, (low, high) in ranges.items()
        if getattr(scheme, key) is not None and not low <= getattr(scheme, key) <= high
    ]


def _bad_budget(scheme: Scheme) -> list[tuple[str, str]]:
    found = []
    if scheme.budget_tokens % scheme.block_tokens:
        found.append(("budget_tokens", f"is not a multiple of the block ({scheme.block_tokens})"))
    elif scheme.chosen_blocks < 1:
        problem = (
            f"{scheme.budget_blocks} blocks leave nothing to choose beside "
            f"{scheme.reserved_blocks} that are always resident"
        )
        found.append(("budget_tokens", problem))
    if scheme.fetch_ratio is not None and scheme.cap_blocks is not None:
        found.append(("cap_blocks", "contradicts fetch_ratio; give one of them"))
    if (scheme.unit == "token") != (scheme.block_tokens == 1):
        found.append(("unit", "token and block_tokens 1 go together"))
    return found


def _bad_parts(scheme: Scheme) -> list[tuple[str, str]]:
    """List contradictions between who predicts, when, and what that needs."""
    rules: list[tuple[bool, str, str]]
    if not scheme.offload:
        alone = "needs offload: without it all KV is in HBM and attended"
        rules = [
            (scheme.draft_row, "draft_row", alone),
            (scheme.compressed_keys, "compressed_keys", alone),
            (scheme.fetch_ratio is not None, "fetch_ratio", alone),
            (scheme.cap_blocks is not None, "cap_blocks", alone),
            (scheme.pool_factor != 1.0, "pool_factor", alone),
            (scheme.draft_kv_bytes_per_token > 0, "draft_kv_bytes_per_token", alone),
            (scheme.predictor != "current", "predictor", "must be current without offload"),
            (scheme.lookahead != "none", "lookahead", "must be none without offload"),
        ]
    else:
        is_draft, is_current = scheme.predictor == "draft", scheme.predictor == "current"
        rules = [
            (is_draft and not scheme.draft_row, "draft_row", "must be true for predictor draft"),
            (not is_draft and scheme.draft_row, "draft_row", "needs predictor draft"),
            (
                scheme.draft_kv_bytes_per_token > 0 and not scheme.draft_row,
                "draft_kv_bytes_per_token",
                "needs draft_row",
            ),
            (
                is_current != scheme.on_demand,
                "lookahead",
                "must be none for predictor current and one_step for the others",
            ),
            (
                scheme.predictor != "oracle" and not scheme.compressed_keys,
                "compressed_keys",
                "must be true: only predictor oracle selects without scores",
            ),
        ]
    return [(key, problem) for broken, key, problem in rules if broken]
