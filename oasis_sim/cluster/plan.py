"""A disaggregated run, resolved: how many nodes, which network, what is sent, what breaks."""

from __future__ import annotations

from dataclasses import dataclass

from oasis_sim.cluster.faults import Faults, read_faults
from oasis_sim.engine.scenario import Scenario
from oasis_sim.engine.spec import DisaggregationSpec
from oasis_sim.errors import RunFailed, UsageError
from oasis_sim.network import NetworkProfile, load_network
from oasis_sim.scheme import Scheme
from oasis_sim.units import format_bytes

FULL, PARTIAL = "full", "partial"


@dataclass(frozen=True)
class Cluster:
    """Say on which nodes a scenario runs; a node has `tp` GPUs of the scenario's profile.

    `transfer`: the whole KV of a prompt (full), or what an extra decode step selects (partial).
    `prefix_hits` is the share of a prompt whose KV the prefill node holds already. `remote_bytes`
    is the host memory of one prefill node that may hold KV for decode nodes. `at_once` is the most
    hand-overs that are under way to one decode node (None: no bound).
    """

    prefill: int
    decode: int
    network: NetworkProfile
    transfer: str
    prefix_hits: float
    remote_bytes: int
    at_once: int | None
    faults: Faults

    @property
    def nodes(self) -> int:
        """Return the nodes on the network: prefill nodes first."""
        return self.prefill + self.decode


def load_cluster(
    spec: DisaggregationSpec, scenario: Scenario, network: NetworkProfile | None = None
) -> Cluster:
    """Load the network (unless it is given) and check that scheme, engine, transfer go together.

    Raises UsageError for parts that contradict each other, InputError for a network that cannot
    be read, RunFailed with the arithmetic when no prompt fits a prefill node.
    """
    network = network or load_network(spec.network)
    _check_scheme(scenario, spec.transfer)
    remote = network.remote_bytes if spec.remote_bytes is None else spec.remote_bytes
    longest = int(scenario.workload.prompt_tokens.max(initial=0))
    needed = longest * scenario.model.kv_bytes_per_token
    if needed > remote:
        raise RunFailed(
            f"the KV of the longest prompt ({longest:,} tokens x "
            f"{scenario.model.kv_bytes_per_token:,} bytes = {format_bytes(needed, binary=True)}) "
            f"exceeds the {format_bytes(remote, binary=True)} of host memory that a prefill node "
            "keeps for others; shorten the context or give it more (--remote-memory)"
        )
    return Cluster(
        spec.prefill,
        spec.decode,
        network,
        spec.transfer,
        spec.prefix_hits,
        remote,
        spec.at_once,
        read_faults(spec.faults, spec.prefill, spec.decode),
    )


def default_transfer(scheme: Scheme) -> str:
    """Return partial for schemes that know one step ahead what they will read, full for others."""
    return PARTIAL if scheme.selects and scheme.offload and _looks_ahead(scheme) else FULL


def _looks_ahead(scheme: Scheme) -> bool:
    return not scheme.on_demand and scheme.lookahead != "one_layer" and scheme.reuse


def _check_scheme(scenario: Scenario, transfer: str) -> None:
    """Refuse schemes and engines that the hand-over of KV between nodes does not describe."""
    scheme = scenario.scheme
    if scenario.profile.engine(scenario.engine_name).static_batches:
        raise UsageError(
            f"engine {scenario.engine_name} decodes static batches; a disaggregated run needs "
            "continuous batching (--engine vllm)"
        )
    if scenario.max_steps is not None:
        raise UsageError("--steps counts the steps of one GPU; leave it out of disaggregated runs")
    if scheme.speculative or scheme.adaptive_cap or scheme.key_rank:
        raise UsageError(
            f"scheme {scheme.name} cannot run disaggregated: accepted drafts, adaptive caps and "
            "low-rank keys have no meaning yet for KV on another node"
        )
    if scheme.selects and not scheme.offload:
        raise UsageError(
            f"scheme {scheme.name} keeps all KV in HBM but reads part of it: run it as dense, or "
            "use a scheme that offloads (--scheme oasis)"
        )
    if transfer == FULL:
        return
    if not scheme.selects:
        raise UsageError(
            f"scheme {scheme.name} attends to all KV: there is no part to send; use --transfer full"
        )
    if not _looks_ahead(scheme):
        raise UsageError(
            f"scheme {scheme.name} selects too late to fetch over a network one step ahead; "
            "use --transfer full"
        )
