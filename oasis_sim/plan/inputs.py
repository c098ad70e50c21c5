"""Load the inputs of many scenarios, each input once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

from oasis_sim.engine.scenario import Scenario
from oasis_sim.engine.spec import LoadSpec, ScenarioSpec, every
from oasis_sim.fileio import find_input
from oasis_sim.network import NetworkProfile, load_network
from oasis_sim.trace import AttentionTrace, load_trace
from oasis_sim.workload import Workload

MOST_TRACES = 8
_SMALLEST_LOAD = LoadSpec(requests=1, context_tokens=1, output_tokens=1)

_Machine = tuple[str, str, str, bool, tuple[str, ...], int | None, str | None]


def loaded_trace(name: str) -> AttentionTrace:
    """Return a trace, read once per process as long as its file stays the same."""
    file = find_input(name, "trace").resolve()
    state = file.stat()
    return _read_once(name, str(file), state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=MOST_TRACES)
def _read_once(name: str, file: str, changed_ns: int, size: int) -> AttentionTrace:  # noqa: ARG001
    return load_trace(name)


@dataclass
class Inputs:
    """Keep what was loaded; a file that changes meanwhile is not read again."""

    _scenarios: dict[_Machine, Scenario] = field(default_factory=dict)
    _workloads: dict[tuple[LoadSpec, int], Workload] = field(default_factory=dict)
    _networks: dict[str, NetworkProfile] = field(default_factory=dict)

    def scenario(self, spec: ScenarioSpec) -> Scenario:
        """Return what `spec.scenario()` returns, from what is loaded already where possible."""
        machine = (
            *(spec.profile, spec.engine, spec.model, spec.scheme.selects, spec.traces),
            *(spec.hbm_bytes, spec.host_link),
        )
        if machine not in self._scenarios:
            smallest = replace(spec, load=_SMALLEST_LOAD)
            self._scenarios[machine] = smallest.scenario(loaded_trace)
        return replace(
            self._scenarios[machine],
            scheme=spec.scheme,
            workload=self._workload(spec),
            concurrency=spec.concurrency,
            drafter=spec.drafter,
            tp=spec.tp,
            host_bytes=spec.host_bytes,
            seed=spec.seed,
            max_steps=spec.max_steps,
        )

    def network(self, spec: ScenarioSpec) -> NetworkProfile | None:
        """Return what lies between the nodes of a scenario, None on one node."""
        nodes = spec.disaggregation
        if nodes is None:
            return None
        if nodes.network not in self._networks:
            self._networks[nodes.network] = load_network(nodes.network)
        return self._networks[nodes.network]

    def _workload(self, spec: ScenarioSpec) -> Workload:
        key = (spec.load, spec.seed)
        if key not in self._workloads and spec.load.every > 1:
            whole = self._workload(replace(spec, load=replace(spec.load, every=1)))
            self._workloads[key] = every(whole, spec.load.every)
        elif key not in self._workloads:
            self._workloads[key] = spec.load.workload(spec.seed)
        return self._workloads[key]
