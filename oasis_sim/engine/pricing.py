"""Prices of a step for one composition of the batch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.state import AS_LINEAR, DRAFT, LM_HEAD, QKV
from oasis_sim.engine.streams import RATE_ONE, TRANSFER
from oasis_sim.engine.stretch import Rows, StretchCosts
from oasis_sim.errors import RunFailed
from oasis_sim.units import PS_PER_S

LONGEST_STEP_PS = 10**16
"""Under three hours; all the steps of one stretch together stay within 64 bits."""
MOST_GROWTH_TOKENS = 1024
"""At least what a request gains in one stretch."""


def price(cost: CostModel, rows: Rows, prefill_ps: int) -> StretchCosts:
    """Return the prices of steps with these rows; `prefill_ps` is added to each of them."""
    sparse, dense = len(rows.context), len(rows.dense_context)
    requests = sparse + dense
    linear_rows = requests * cost.rows_per_request
    share, costs, scheme = cost.share, cost.costs, cost.scheme
    heads = sparse * share.kv_heads
    attended = sparse * scheme.attended_tokens_max * share.kv_bytes_layer
    dense_bytes = int(rows.dense_context.sum()) * share.kv_bytes_layer
    scan_bytes = int(rows.context.sum()) // scheme.block_tokens * cost.scan_bytes_per_block()
    scan_share = costs.scan_efficiency.at(max(scan_bytes, 1))
    decode = requests > 0
    context_tokens = int(rows.context.sum() + rows.dense_context.sum())
    collective = cost.collective_ps(linear_rows)
    apart = collective if costs.collective_apart else 0
    prices = StretchCosts(
        prefill=prefill_ps,
        qkv=cost.linear_ps(share.qkv, linear_rows),
        output_ffn=cost.linear_ps(share.output_ffn, linear_rows) + collective - apart,
        lm_head=cost.linear_ps(share.lm_head, cost.head_rows(linear_rows)),
        draft=cost.draft_ps(linear_rows, context_tokens),
        launch_per_layer=cost.launch_layer_ps() if decode else 0,
        launch_per_step=cost.launch_step_ps(requests),
        d2h=cost.d2h_ps(sparse * scheme.tokens_per_step_max * share.host_bytes_token(scheme)),
        kv_bytes_layer=share.kv_bytes_layer,
        block_tokens=scheme.block_tokens,
        chosen_tokens=(scheme.chosen_blocks + scheme.sink_blocks + max(scheme.recent_blocks - 1, 0))
        * scheme.block_tokens,
        attention_ps_per_byte=cost.hbm_ps_per_byte(costs.attention_efficiency.at(max(attended, 1))),
        dense_ps_per_byte=cost.hbm_ps_per_byte(
            costs.dense_attention_efficiency.at(max(dense_bytes, 1))
        ),
        scan_bytes_per_block=cost.scan_bytes_per_block() if scheme.compressed_keys else 0,
        scan_ps_per_byte=cost.hbm_ps_per_byte(scan_share),
        selection_fixed=costs.selection.fixed_ps + round(costs.selection.per_head_ps * heads),
        selection_per_candidate=costs.selection.per_candidate_ps * share.kv_heads,
        selection_per_block=costs.selection.per_block_ps,
        block_bytes=share.block_bytes(scheme),
        transfer_fixed=cost.transport.fixed_ps,
        transfer_ps_per_byte=cost.transfer_ps_per_byte(),
        on_demand=scheme.on_demand,
        next_layer=scheme.lookahead == "one_layer",
        correction=round(scheme.correction_share * RATE_ONE),
        rates=_rates(cost, linear_rows),
        join=costs.launch.join_streams,
        idle=round(RATE_ONE / cost.transport.idle_speedup.at(share.unit_bytes(scheme))),
        covered=_covered(cost, linear_rows),
        collective=apart,
        own=AS_LINEAR,
        inline=cost.predicts_inline,
    )
    prices = prices._replace(own=_own(cost, linear_rows, context_tokens, prices))
    _check_length(cost, rows, prices)
    return prices


def _check_length(cost: CostModel, rows: Rows, prices: StretchCosts) -> None:
    """Raise RunFailed when a step could take hours: its sums would not fit 64-bit picoseconds."""
    sparse = len(rows.context)
    tokens = float(rows.context.sum() + rows.dense_context.sum())
    tokens += MOST_GROWTH_TOKENS * (sparse + len(rows.dense_context))
    blocks = tokens / prices.block_tokens
    fetched = sparse * cost.share.kv_heads * cost.scheme.chosen_blocks * prices.block_bytes
    layer = (
        prices.qkv
        + prices.output_ffn
        + prices.collective
        + prices.launch_per_layer
        + prices.selection_fixed
        + prices.transfer_fixed
        + tokens
        * prices.kv_bytes_layer
        * max(prices.attention_ps_per_byte, prices.dense_ps_per_byte)
        + blocks * prices.scan_bytes_per_block * prices.scan_ps_per_byte
        + blocks * (prices.selection_per_candidate + prices.selection_per_block)
        + fetched * prices.transfer_ps_per_byte
    )
    once = prices.prefill + prices.lm_head + prices.draft + prices.launch_per_step + prices.d2h
    rates = np.concatenate((prices.rates, prices.own))
    longest_ps = (once + cost.share.model.layers * layer) * float(
        RATE_ONE / rates.min(where=rates > 0, initial=RATE_ONE)
    )
    if longest_ps > LONGEST_STEP_PS:
        raise RunFailed(
            f"one step could take {longest_ps / PS_PER_S:,.0f} s on profile {cost.profile.name}; "
            "are its rates and times in the right units?"
        )


def _rates(cost: CostModel, rows: int) -> npt.NDArray[np.int64]:
    """Return fixed-point progress rates, int64[3, 3] (see `pipeline.StepTimes`)."""
    factors = np.array(cost.slowdowns(rows))
    return np.asarray(np.round(RATE_ONE / factors), dtype=np.int64)


def _own(
    cost: CostModel, rows: int, context_tokens: int, prices: StretchCosts
) -> npt.NDArray[np.int64]:
    """Return progress that is not that of linear layers, int64[3, 3] (see `pipeline.StepTimes`).

    An LM head that runs on few of the rows is slowed by a transfer as linear layers with those
    rows are which it covers. A draft model that reads its own KV is slowed there as attention is.
    """
    own = AS_LINEAR.copy()
    linear, attention, _ = cost.slowdowns(rows)
    if cost.transport.qkv_slowdown is not None:
        slower = cost.transport.qkv_slowdown.at(max(rows, 1))
        own[QKV] = np.round(RATE_ONE / np.array((slower, *linear[1:])))
    few = max(cost.head_rows(rows), 1)
    covered = (cost.transport.linear_covered or cost.transport.slowdown.linear).at(few)
    if cost.costs.lm_head_per_request:
        own[LM_HEAD] = np.round(RATE_ONE / np.array((covered, *linear[1:])))
    if cost.costs.draft_reads_kv and prices.draft > 0:
        read = cost.draft_read_ps(context_tokens) / prices.draft
        slower = read * attention[TRANSFER] + (1.0 - read) * covered
        own[DRAFT] = np.round(RATE_ONE / np.array((slower, *linear[1:])))
    return own


def _covered(cost: CostModel, rows: int) -> int:
    """Return the fixed-point progress of linear layers that a transfer covers whole, or 0."""
    curve = cost.transport.linear_covered
    return 0 if curve is None else round(RATE_ONE / curve.at(max(rows, 1)))
