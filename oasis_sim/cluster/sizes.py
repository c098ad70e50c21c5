"""Bytes and times of a request between nodes: what is sent, what is held, what prefill takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oasis_sim.cluster.plan import PARTIAL, Cluster
from oasis_sim.engine.batch import rows_of
from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.memory import Footprint, footprint
from oasis_sim.engine.pricing import price
from oasis_sim.engine.state import NOW, new_marks, new_state
from oasis_sim.engine.stretch import run_stretch
from oasis_sim.engine.walks import Walks
from oasis_sim.network import Transfer


@dataclass(frozen=True)
class Parts:
    """Split what a hand-over sends: KV into host memory (or HBM, dense), and GPU to GPU."""

    kv: Transfer
    gpu: Transfer | None

    @property
    def total_bytes(self) -> int:
        """Return all bytes."""
        return self.kv.total_bytes + (self.gpu.total_bytes if self.gpu else 0)


class NodeSizes:
    """Give the bytes of requests on nodes of `tp` GPUs, and the times of the prefill side."""

    def __init__(self, cost: CostModel, cluster: Cluster, walks: Walks) -> None:
        self.cost = cost
        self.cluster = cluster
        self.footprint: Footprint = footprint(cost)
        self.tables = walks.tables
        self._extra: dict[int, int] = {}
        self._prefill: dict[int, int] = {}
        self._fetch: dict[int, tuple[int, float]] = {}
        scheme, model = cost.scheme, cost.share.model
        self.block_tokens = scheme.block_tokens
        host = self.footprint.host_token * cost.share.tp
        self.kv_token = host if scheme.offload else model.kv_bytes_per_token
        """Bytes of a token that the decode node receives with full transfer, all GPUs."""
        self.block_layer = self.kv_token * scheme.block_tokens // model.layers
        """Bytes of one block of all KV heads of one layer."""

    @property
    def partial(self) -> bool:
        """Say whether decode nodes fetch what they miss."""
        return self.cluster.transfer == PARTIAL

    def is_sparse(self, prompt: int) -> bool:
        """Say whether a request of this prompt decodes from a working set on the decode node."""
        scheme = self.cost.scheme
        return scheme.selects and prompt > scheme.attended_tokens_max

    def hbm_bytes(self, prompt: int, output: int) -> int:
        """Return the HBM of one GPU of a decode node that a request needs to its end."""
        final = prompt + output
        if self.is_sparse(prompt):
            return self.footprint.sparse_bytes(final)
        return self.footprint.dense_bytes(final)

    def parts(self, prompt: int, union_blocks: int | None) -> Parts:
        """Return what is sent for a prompt: the union (layer blocks of all layers) or everything.

        Pieces are packed in the staging pool up to the network's `coalesce_bytes`.
        """
        tp, sizes = self.cost.share.tp, self.footprint
        limit = self.cluster.network.coalesce_bytes
        kv = prompt * self.kv_token
        pieces = -(-kv // max(self.block_layer, 1))
        if union_blocks is not None:
            kv, pieces = union_blocks * self.block_layer, union_blocks
        gpu = 0
        if self.is_sparse(prompt):
            gpu = (sizes.compressed_token + sizes.draft_token) * prompt * tp
        return Parts(
            Transfer(max(1, min(pieces, kv)), max(1, kv)).coalesced(limit),
            Transfer(min(gpu, -(-gpu // limit)), gpu) if gpu else None,
        )

    def load_ps(self, prompt: int) -> int:
        """Return the time to gather the first working set from host memory into HBM."""
        if not self.is_sparse(prompt):
            return 0
        cost, scheme = self.cost, self.cost.scheme
        blocks = scheme.chosen_blocks * cost.share.kv_heads * cost.share.model.layers
        moved = blocks * cost.share.block_bytes(scheme) * cost.transfer_ps_per_byte()
        return round(moved) + cost.transport.fixed_ps

    def prefill_ps(self, tokens: int) -> int:
        """Return the time of prefill of a prompt, but for the share that the cache holds."""
        if tokens not in self._prefill:
            start = min(int(tokens * self.cluster.prefix_hits), tokens - 1)
            chunk, total = self.cost.costs.prefill.chunk_tokens, 0
            while start < tokens:
                part = min(chunk, tokens - start)
                total += self.cost.prefill_ps(start, part)
                start += part
            self._prefill[tokens] = total
        return self._prefill[tokens]

    def extra_step_ps(self, prompt: int) -> int:
        """Return the time of one dense decode step, scan and selection of one request.

        Kept per block of context: it changes by less than a millisecond over a thousand tokens.
        """
        key = prompt // self.block_tokens
        if key not in self._extra:
            self._extra[key] = self._one_step_ps(key * self.block_tokens)
        return self._extra[key]

    def _one_step_ps(self, context: int) -> int:
        cost, layers = self.cost, self.cost.share.model.layers
        rows = rows_of((), ())._replace(dense_context=np.array([context], dtype=np.int64))
        tables, state = self.tables, new_state(layers, self.tables.ranks)
        log = np.zeros((1, tables.log_columns), dtype=np.int64)
        quality = np.zeros((1, tables.quality.shape[1]))
        prices = price(cost, rows, 0)
        run_stretch(state, rows, tables, prices, 1 << 62, log, quality, new_marks(state))
        blocks = context // self.block_tokens
        scan = blocks * prices.scan_bytes_per_block * prices.scan_ps_per_byte
        chosen = cost.costs.selection
        select = chosen.fixed_ps + chosen.per_head_ps * cost.share.kv_heads
        select += blocks * prices.selection_per_candidate
        return int(state.scalars[NOW]) + round(layers * (scan + select))

    def fetch_prices(self, together: int) -> tuple[int, float]:
        """Return what fetching missing blocks of one layer takes: once, and per block, picoseconds.

        One request per layer with a descriptor per block; the NIC is shared fairly with `together`
        other transfers.
        """
        if together not in self._fetch:
            network = self.cluster.network
            one = Transfer.of(1, max(1, self.block_layer))
            wire = network.flow_ps(one) - network.posting_total_ps(one)
            fixed = network.latency_ps + network.completion_ps
            self._fetch[together] = fixed, network.posting_ps + wire * (1.0 + together)
        return self._fetch[together]
