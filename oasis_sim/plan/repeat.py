"""The `run` command that simulates a replica of a fleet, or all its nodes."""

from __future__ import annotations

import shlex

from oasis_sim.engine.spec import DisaggregationSpec
from oasis_sim.plan.fleet import Fleet
from oasis_sim.plan.probe import share_of


def run_command(fleet: Fleet) -> str:
    """Return the command that gives the numbers of a fleet again."""
    spec = share_of(fleet.spec, fleet.replicas)
    load = spec.load
    words = ["oasis-sim", "run", "--profile", spec.profile, "--model", spec.model, *fleet.words]
    words += ["--engine", spec.engine]
    if load.file is not None:
        words += ["--workload", load.file, "--workload-format", str(load.format)]
        words += ["--every", str(load.every)]
    else:
        words += ["--rate", repr(load.rate_per_s)]
        words += ["--context", str(load.context_tokens)]
        words += ["--output-tokens", str(load.output_tokens)]
    words += ["--tp", str(spec.tp), "--seed", str(spec.seed)]
    words += _given(
        {
            "--requests": load.requests,
            "--concurrency": spec.concurrency,
            "--host-memory": _size(spec.host_bytes),
            "--hbm-memory": _size(spec.hbm_bytes),
            "--pcie": spec.host_link,
        }
    )
    return shlex.join(words + _nodes(spec.disaggregation))


def _nodes(nodes: DisaggregationSpec | None) -> list[str]:
    """Return the options of nodes and of what lies between them."""
    if nodes is None:
        return []
    words = ["--disaggregated", f"{nodes.prefill}:{nodes.decode}", "--network", nodes.network]
    words += ["--transfer", nodes.transfer, "--prefix-hits", repr(nodes.prefix_hits)]
    more = {"--remote-memory": _size(nodes.remote_bytes), "--transfers-at-once": nodes.at_once}
    faults = [word for text in nodes.faults for word in ("--fault", text)]
    return words + _given(more) + faults


def _given(options: dict[str, int | str | None]) -> list[str]:
    return [
        word for name, value in options.items() if value is not None for word in (name, str(value))
    ]


def _size(size_bytes: int | None) -> str | None:
    return None if size_bytes is None else f"{size_bytes} B"
