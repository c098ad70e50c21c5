"""Say what a scheme does, in words and as a picture; all of it follows from its parts."""

from __future__ import annotations

from dataclasses import dataclass

from oasis_sim.scheme.picture import picture
from oasis_sim.scheme.scheme import Scheme

WHO = {
    "draft": "the query of a draft token that runs beside the real one",
    "previous": "the query of the token before",
    "current": "the token's own query",
    "oracle": "the next token's query, known in advance (a bound, not a system)",
}
REHEARSED = "a rehearsal of the next layer's query"
TRANSPORTS = {
    "sm_gather": "a kernel that reads pinned host memory",
    "copy_engine": "the copy engine",
    "naive": "one copy call per block",
    "cpu_gather": "the CPU, which gathers, and one copy",
}
EVICTED = {
    "least_recently_selected": "was selected longest ago",
    "least_attended": "held the least of the attention that was read",
    "belady": "is selected again last (a bound, not a system)",
}
SHARED = {
    "head": "",
    "layer": ", as a mean over the heads of a layer",
    "model": ", as a mean over all heads and layers; layers that missed more may fetch more",
}
LEAVES = {
    "decode": "a prompt's KV leaves HBM in the background, once the context is above the budget",
    "prefill": "a prompt's KV leaves HBM when its prefill ends",
    "layer": "a prompt's KV leaves HBM during prefill, one layer at a time",
}


@dataclass(frozen=True)
class Explanation:
    """Hold what is resident in HBM, what moves when, what waits, and a picture of it."""

    resident: tuple[str, ...]
    moves: tuple[str, ...]
    waits: tuple[str, ...]
    picture: tuple[str, ...]


def explain(scheme: Scheme) -> Explanation:
    """Derive the explanation of a scheme from its parts."""
    return Explanation(resident(scheme), moves(scheme), waits(scheme), picture(scheme))


def resident(scheme: Scheme) -> tuple[str, ...]:
    """List what stays in HBM, per request."""
    found = []
    if not scheme.offload:
        found.append("all keys and values of every layer")
    else:
        found.append(
            f"{scheme.pool_blocks:,} slots for blocks of {_tokens(scheme.block_tokens)} per layer "
            f"and KV head, of which {scheme.chosen_blocks:,} blocks are attended"
        )
        found.append(_always(scheme))
    if scheme.compressed_keys:
        found.append(
            f"an index of all keys, {100 * scheme.index_share:g} % of their size, scanned in every "
            "step"
        )
    if scheme.key_rank:
        found.append(f"keys of every token as factors of rank {scheme.key_rank}")
    if scheme.draft_row and scheme.draft_kv_bytes_per_token != 0:
        size = scheme.draft_kv_bytes_per_token
        much = "as much as one layer's" if size is None else f"{size:,} bytes per token"
        found.append(f"KV of the draft model, {much}")
    if scheme.generation_buffer_tokens:
        found.append(f"room for {scheme.generation_buffer_tokens:,} generated tokens")
    return tuple(found)


def _always(scheme: Scheme) -> str:
    first = f"the first {_blocks(scheme.sink_blocks)} and " if scheme.sink_blocks else ""
    budget = "in" if scheme.recent_in_budget else "beside"
    return f"{first}the newest {_blocks(scheme.recent_blocks)}, always, {budget} the budget"


def _tokens(count: int) -> str:
    return f"{count:,} token{'s' if count > 1 else ''}"


def _blocks(count: int) -> str:
    return "block" if count == 1 else f"{count:,} blocks"


def moves(scheme: Scheme) -> tuple[str, ...]:
    """List who selects, what crosses PCIe, and when."""
    who = REHEARSED if scheme.lookahead == "one_layer" else WHO[scheme.predictor]
    if not scheme.offload:
        if not scheme.selects:
            return ("nothing is selected and nothing moves",)
        return (f"{scheme.chosen_blocks:,} blocks are selected by {who}; nothing moves",)
    pieces = scheme.fetch_unit_tokens or scheme.block_tokens
    what = "values" if scheme.key_rank else "keys and values"
    small = (
        f", {scheme.host_bytes_per_element} byte per element"
        if scheme.host_bytes_per_element
        else ""
    )
    return (
        f"host memory holds all {what}{small}; new ones are copied there after each step",
        LEAVES[scheme.offload_at],
        f"{scheme.chosen_blocks:,} blocks per layer and KV head are selected by {who}",
        f"{_amount(scheme)}, in pieces of {_tokens(pieces)} by {TRANSPORTS[scheme.transport]}",
        _replaced(scheme),
    )


def _amount(scheme: Scheme) -> str:
    """Say how many blocks are fetched per layer, head and step."""
    shared = SHARED[scheme.cap_over]
    if scheme.admit == "gainful":
        shared += ", and none for a block that held more attention than fetched ones do"
    if scheme.adaptive_cap:
        return f"as many missing blocks are fetched as hide under the step{shared}"
    if not scheme.reuse:
        return "the whole selection is fetched, resident or not"
    if scheme.admission_cap < scheme.chosen_blocks:
        return f"at most {scheme.admission_cap:,} of the missing blocks are fetched{shared}"
    return f"all missing blocks are fetched{shared}"


def _replaced(scheme: Scheme) -> str:
    if not scheme.reuse:
        return "what was fetched before is overwritten"
    return f"a fetched block replaces the one outside the selection that {EVICTED[scheme.evict]}"


def waits(scheme: Scheme) -> tuple[str, ...]:
    """List what attention waits for, and what is left out instead."""
    found: list[str] = []
    if not scheme.offload:
        if not scheme.selects:
            return ("attention waits for its QKV projection alone",)
        return ("attention waits for the scan of the index and the selection of its layer",)
    if scheme.lookahead == "one_step":
        found.append("attention waits for the transfer that its layer began in the step before")
    elif scheme.lookahead == "one_layer":
        found.append("attention waits for the transfer that began beside the layer before")
    else:
        found.append("attention waits for scan, selection and transfer of its own layer")
    if scheme.correction_share:
        found.append(
            f"{100 * scheme.correction_share:g} % of the fetches are made again on the critical "
            "path, for heads whose query moved too far"
        )
    if scheme.adaptive_cap or (scheme.reuse and scheme.admission_cap < scheme.chosen_blocks):
        found.append(
            "selected blocks that were not fetched are not attended: nothing waits for them"
        )
    if scheme.draft_row:
        found.append("each request runs two rows through every layer, the real token and its draft")
    if scheme.speculative:
        found.append("a draft that the model accepts is kept: the request goes on two tokens")
    return tuple(found)
