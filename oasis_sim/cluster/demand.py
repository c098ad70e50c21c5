"""What a request takes of its nodes: memory on both, time of prefill, what is sent and fetched."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from oasis_sim.cluster.growth import Growth
from oasis_sim.cluster.sizes import NodeSizes, Parts
from oasis_sim.cluster.visit import Visit


class Demand:
    """Work out what requests take; `growth` says what is fetched (None: all is sent)."""

    def __init__(
        self, sizes: NodeSizes, growth: Growth | None, group_size: npt.NDArray[np.int64]
    ) -> None:
        self.sizes = sizes
        self._growth, self._group_size = growth, group_size

    @property
    def fetches(self) -> bool:
        """Say whether decode nodes fetch what they miss."""
        return self._growth is not None

    def settle(self, visit: Visit) -> None:
        """Write into a visit what it takes from its present context on."""
        job, sizes = visit.job, self.sizes
        sparse, left = sizes.is_sparse(job.prompt), job.remaining
        visit.need, visit.sparse = None, sparse
        if self._growth is not None and sparse:
            visit.need = self._growth.need(job.index, visit.context)
        visit.hbm_bytes = sizes.hbm_bytes(visit.context, left)
        visit.host_bytes = 0
        if sparse and sizes.cost.scheme.offload:
            visit.host_bytes = left * sizes.kv_token + self.prompt_bytes(visit, left)
        visit.staged_bytes = visit.context * sizes.cost.share.model.kv_bytes_per_token
        visit.prefill_ps = sizes.prefill_ps(visit.context)
        if visit.need is not None:
            visit.prefill_ps += sizes.extra_step_ps(visit.context)

    def prompt_bytes(self, visit: Visit, steps: int) -> int:
        """Return the bytes of a prompt that the decode host holds after some steps."""
        if visit.need is None:
            return visit.context * self.sizes.kv_token
        fetched = visit.need.fetched(steps, self._group_size)
        return (visit.need.union + fetched) * self.sizes.block_layer

    def parts(self, visit: Visit) -> Parts:
        """Return what is sent at first."""
        union = visit.need.union if visit.need is not None else None
        return self.sizes.parts(visit.context, union)
