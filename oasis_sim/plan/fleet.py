"""What a plan asks for and what it finds: replicas, or prefill and decode nodes."""

from __future__ import annotations

from dataclasses import dataclass

from oasis_sim.engine.spec import ScenarioSpec
from oasis_sim.plan.probe import Probe
from oasis_sim.plan.slo import Reading, Target
from oasis_sim.report.between_nodes import nodes_text
from oasis_sim.report.numbers import counted, milliseconds, percent

STAYS_PER_SPAN = 5
"""Requests must arrive over this many mean stays, or the replica never sees its steady load."""


@dataclass(frozen=True)
class Bounds:
    """Say how many prefill and decode nodes a plan may take: the least and the most of each."""

    prefill: tuple[int, int]
    decode: tuple[int, int]

    @property
    def least(self) -> int:
        """Return the fewest nodes in all."""
        return self.prefill[0] + self.decode[0]

    def words(self) -> str:
        """Return both ranges in words."""
        return f"{_range(self.prefill)} prefill and {_range(self.decode)} decode nodes"


def _range(ends: tuple[int, int]) -> str:
    low, high = ends
    return str(low) if low == high else f"{low} to {high}"


@dataclass(frozen=True)
class Job:
    """Ask for the smallest fleet: the scenario of the whole load, targets, sizes allowed.

    With `bounds` prefill and decode have nodes of their own, and the scenario says what lies
    between them. `words` are options that a command line needs besides those that the scenario
    names.
    """

    spec: ScenarioSpec
    targets: tuple[Target, ...]
    most_gpus: int
    tensor_parallel: tuple[int, ...]
    fixed_requests: bool
    words: tuple[str, ...] = ()
    bounds: Bounds | None = None


@dataclass(frozen=True)
class Fewer:
    """Hold a fleet of one replica or node fewer, and what its simulation said."""

    unit: str
    size: str
    probe: Probe

    def sentence(self) -> str:
        """Say what it misses."""
        return f"one {self.unit} fewer misses: {shortfall(self.probe)}"


@dataclass(frozen=True)
class Fleet:
    """Hold a fleet that meets the targets and how it was found.

    Where the scenario is disaggregated, its nodes are the fleet, as one replica. `fewer` are the
    fleets of one replica or node fewer that were simulated. `larger_fails`: with one replica more
    the targets are missed, because the share of a file that the simulated replica gets is another
    one; chance decides between the two.
    """

    spec: ScenarioSpec
    replicas: int
    meets: Probe
    fewer: tuple[Fewer, ...]
    output_tokens_per_s: float
    simulations: int
    profile_origin: str
    gpu_power_w: float | None = None
    larger_fails: bool = False
    words: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """Return the GPUs of all replicas, or of all nodes."""
        return gpus_of(self.spec, self.replicas)

    @property
    def decode_gpus(self) -> int:
        """Return the GPUs that decode."""
        nodes = self.spec.disaggregation
        return self.gpus if nodes is None else nodes.decode * self.spec.tp

    @property
    def unit(self) -> str:
        """Return what the fleet is counted in."""
        return "replica" if self.spec.disaggregation is None else "node"

    @property
    def size(self) -> str:
        """Return the number of replicas, or prefill and decode nodes as P:D."""
        return nodes_of(self.spec) or str(self.replicas)

    @property
    def layout(self) -> str:
        """Return the replicas or nodes in words."""
        nodes, tp = self.spec.disaggregation, self.spec.tp
        if nodes is None:
            return f"{counted(self.replicas, 'replica')} of tp {tp}"
        return f"{nodes_text(nodes.prefill, nodes.decode)} of tp {tp}"

    @property
    def is_short(self) -> bool:
        """Tell whether requests arrived for less time than a steady load takes to build up."""
        return self.meets.span_s < STAYS_PER_SPAN * self.meets.e2e_s

    def bracket_words(self) -> str:
        """Return the sizes that fail and the one that meets the targets."""
        meets = f"{self.size} meets"
        if not self.fewer:
            return meets
        verb = "fails" if len(self.fewer) == 1 else "fail"
        return f"{', '.join(each.size for each in self.fewer)} {verb}, {meets}"


@dataclass(frozen=True)
class Answer:
    """Hold the fleet of one job, or why there is none; `tried` says how each tp went.

    `simulated` tells whether anything was, under the load.
    """

    job: Job
    fleet: Fleet | None
    tried: tuple[str, ...] = ()
    simulated: bool = True


def nodes_of(spec: ScenarioSpec) -> str:
    """Return the prefill and decode nodes of a scenario as P:D; nothing for one node."""
    nodes = spec.disaggregation
    return "" if nodes is None else f"{nodes.prefill}:{nodes.decode}"


def gpus_of(spec: ScenarioSpec, replicas: int) -> int:
    """Return the GPUs of so many replicas of a scenario."""
    nodes = spec.disaggregation
    return replicas * spec.tp * (1 if nodes is None else nodes.prefill + nodes.decode)


def shortfall(probe: Probe) -> str:
    """Say which targets are missed and by how much, or that the queue grows."""
    parts = [missed(reading) for reading in probe.readings if not reading.met]
    parts += [probe.failure] if probe.failure else []
    if probe.refused:
        parts.append(f"{probe.refused} requests do not fit")
    elif probe.prefill_share > 1:
        parts.append(f"prefill alone takes {percent(probe.prefill_share)} of the time")
    elif not probe.keeps_up:
        parts.append(f"{percent(probe.waiting_share)} of the requests still wait at the end")
    return "; ".join(parts)


def missed(reading: Reading) -> str:
    """Say by how much a target is missed."""
    reached = "never measured" if reading.value_ms is None else milliseconds(reading.value_ms)
    return f"{reading.target.name} {reached}, target {milliseconds(reading.limit_ms)}"
