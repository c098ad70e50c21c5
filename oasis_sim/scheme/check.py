"""What a scheme may be: known words, ranges, and parts that contradict each other."""

from __future__ import annotations

from oasis_sim.scheme.parts import SchemeParts

WORDS: dict[str, tuple[str, ...]] = {
    "predictor": ("draft", "previous", "current", "oracle"),
    "lookahead": ("one_step", "one_layer", "none"),
    "unit": ("block", "token"),
    "cap_over": ("head", "layer", "model"),
    "evict": ("least_recently_selected", "least_attended", "belady"),
    "admit": ("all", "gainful"),
    "transport": ("sm_gather", "copy_engine", "naive", "cpu_gather"),
    "offload_at": ("decode", "prefill", "layer"),
}
"""The parts that are chosen from a list."""


def contradictions(scheme: SchemeParts) -> list[tuple[str, str]]:
    """List (part, problem) of all parts that are out of range or contradict each other."""
    found = [*_unknown_words(scheme), *_bad_sizes(scheme)]
    return found or [*_bad_budget(scheme), *_bad_parts(scheme)]


def _unknown_words(scheme: SchemeParts) -> list[tuple[str, str]]:
    return [
        (key, f"{getattr(scheme, key)!r} is not known; use one of {', '.join(known)}")
        for key, known in WORDS.items()
        if getattr(scheme, key) not in known
    ]


def _bad_sizes(scheme: SchemeParts) -> list[tuple[str, str]]:
    ranges: dict[str, tuple[float, float]] = {
        "block_tokens": (1, 4096),
        "budget_tokens": (1, 2**24),
        "pool_factor": (1.0, 1024.0),
        "sink_blocks": (0, 2**16),
        "recent_blocks": (1, 2**16),
        "fetch_ratio": (0.0, 1.0),
        "cap_blocks": (0, 2**24),
        "correction_share": (0.0, 1.0),
        "key_index_share": (0.0, 1.0),
        "key_rank": (0, 2**16),
        "draft_kv_bytes_per_token": (0, 2**24),
        "fetch_unit_tokens": (0, 4096),
        "host_bytes_per_element": (0, 8),
        "generation_buffer_tokens": (0, 2**24),
    }
    return [
        (key, f"{getattr(scheme, key)!r} is out of range; use {low:g} to {high:g}")
        for key, (low, high) in ranges.items()
        if getattr(scheme, key) is not None and not low <= getattr(scheme, key) <= high
    ]


def _bad_budget(scheme: SchemeParts) -> list[tuple[str, str]]:
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


def _bad_parts(scheme: SchemeParts) -> list[tuple[str, str]]:
    """List contradictions between who predicts, when, and what that needs."""
    rules = _rules_of_fetching(scheme) if scheme.offload else _rules_without_offload(scheme)
    return [(key, problem) for broken, key, problem in rules if broken]


def _rules_without_offload(scheme: SchemeParts) -> list[tuple[bool, str, str]]:
    """Return (broken, part, problem): what needs KV in host memory to make sense."""
    alone = "needs offload: without it all KV is in HBM"
    return [
        (scheme.draft_row, "draft_row", alone),
        (scheme.speculative, "speculative", alone),
        (scheme.fetch_ratio is not None, "fetch_ratio", alone),
        (scheme.cap_blocks is not None, "cap_blocks", alone),
        (scheme.adaptive_cap, "adaptive_cap", alone),
        (scheme.cap_over != "head", "cap_over", alone),
        (scheme.evict != "least_recently_selected", "evict", alone),
        (scheme.admit != "all", "admit", alone),
        (scheme.pool_factor != 1.0, "pool_factor", alone),
        (scheme.correction_share > 0, "correction_share", alone),
        (not scheme.reuse, "reuse", alone),
        (scheme.key_rank > 0, "key_rank", alone),
        ((scheme.draft_kv_bytes_per_token or 0) > 0, "draft_kv_bytes_per_token", alone),
        (scheme.fetch_unit_tokens > 0, "fetch_unit_tokens", alone),
        (scheme.host_bytes_per_element > 0, "host_bytes_per_element", alone),
        (scheme.offload_at != "decode", "offload_at", alone),
        (scheme.generation_buffer_tokens > 0, "generation_buffer_tokens", alone),
        (scheme.predictor != "current", "predictor", "must be current without offload"),
        (scheme.lookahead != "none", "lookahead", "must be none without offload"),
    ]


def _rules_of_fetching(scheme: SchemeParts) -> list[tuple[bool, str, str]]:
    """Return (broken, part, problem): who predicts, when, and how much is fetched."""
    is_draft, is_current = scheme.predictor == "draft", scheme.predictor == "current"
    ahead = scheme.lookahead == "one_step"
    capped = scheme.fetch_ratio is not None or scheme.cap_blocks is not None
    return [
        (is_draft and not scheme.draft_row, "draft_row", "must be true for predictor draft"),
        (not is_draft and scheme.draft_row, "draft_row", "needs predictor draft"),
        (scheme.speculative and not is_draft, "speculative", "needs predictor draft"),
        (
            (scheme.draft_kv_bytes_per_token or 0) > 0 and not scheme.draft_row,
            "draft_kv_bytes_per_token",
            "needs draft_row",
        ),
        (
            is_current == ahead,
            "lookahead",
            "must be none or one_layer for predictor current and one_step for the others",
        ),
        (
            scheme.predictor != "oracle" and not scheme.compressed_keys,
            "compressed_keys",
            "must be true: only predictor oracle selects without scores",
        ),
        (scheme.adaptive_cap and capped, "adaptive_cap", "replaces a fixed cap; drop that one"),
        (scheme.adaptive_cap and not ahead, "adaptive_cap", "needs lookahead one_step"),
        (scheme.correction_share > 0 and not ahead, "correction_share", "needs lookahead one_step"),
        (
            scheme.cap_over != "head" and not (capped or scheme.adaptive_cap),
            "cap_over",
            "needs a cap",
        ),
        (not scheme.reuse and (capped or scheme.adaptive_cap), "reuse", "false excludes a cap"),
        (
            scheme.evict == "least_attended" and not (ahead and scheme.reuse),
            "evict",
            "least_attended needs lookahead one_step and reuse",
        ),
        (
            scheme.admit == "gainful" and scheme.evict != "least_attended",
            "admit",
            "gainful needs evict least_attended",
        ),
    ]
