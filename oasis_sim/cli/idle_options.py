"""Options that were given and have no effect on the run: said, not ignored in silence.

A part of a scheme that the scheme cannot use is refused (`oasis_sim.scheme.with_options`). What
describes the machine or the data is true whatever the scheme, so it is accepted and told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oasis_sim.scheme import Scheme

OF_HOST_MEMORY = {"host_bytes": "--host-memory", "host_link": "--pcie"}


def idle_options(values: Mapping[str, Any], scheme: Scheme, several_nodes: bool) -> Iterator[str]:
    """Say of each option that was given and is not used; on several nodes KV is sent by all."""
    if values["trace"] and not scheme.selects:
        yield f"--trace has no effect: scheme {scheme.name} attends all blocks"
    if scheme.offload or several_nodes:
        return
    for key, option in OF_HOST_MEMORY.items():
        if values[key] is not None:
            yield f"{option} has no effect: scheme {scheme.name} keeps all KV in HBM"
