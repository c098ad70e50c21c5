"""A scenario by name: the plain values of options and config files, and how they are loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from oasis_sim.engine.scenario import Scenario
from oasis_sim.errors import UsageError
from oasis_sim.hardware import load_profile, with_capacities
from oasis_sim.model import load_model
from oasis_sim.scheme import Scheme, load_scheme
from oasis_sim.trace import AttentionTrace, load_trace
from oasis_sim.workload import Workload, closed_loop, load_workload, poisson

DEFAULT_PROFILE = "h100"
DEFAULT_ENGINE = "vllm"
DEFAULT_MODEL = "qwen3-8b"
DEFAULT_SCHEME = "oasis"
DEFAULT_TRACE = "aime.jsonl"
DEFAULT_NETWORK = "roce-400"
DEFAULT_CONTEXT_TOKENS = 16_384
DEFAULT_OUTPUT_TOKENS = 2_048
DEFAULT_CONCURRENCY = 128
DEFAULT_REQUESTS = 256

CLOSED_LOOP, POISSON, FILE = LOAD_KINDS = ("closed_loop", "poisson", "file")


@dataclass(frozen=True)
class LoadSpec:
    """Say which requests arrive and when.

    `closed_loop`: all wait from the start. `poisson`: random arrivals at `rate_per_s`. `file`:
    the first `requests` (None: all) rows of a request file in a named format, of which every
    `every`-th is kept: what one of so many replicas sees when requests are dealt out in turn.
    """

    kind: str = CLOSED_LOOP
    requests: int | None = DEFAULT_REQUESTS
    context_tokens: int | None = DEFAULT_CONTEXT_TOKENS
    output_tokens: int | None = DEFAULT_OUTPUT_TOKENS
    rate_per_s: float | None = None
    file: str | None = None
    format: str | None = None
    every: int = 1

    def workload(self, seed: int) -> Workload:
        """Make or read the requests."""
        if self.kind == FILE:
            if self.file is None or self.format is None:
                raise UsageError("a request file needs its format: never guess a unit")
            whole = first_requests(load_workload(self.file, self.format), self.requests)
            return every(whole, self.every)
        if self.requests is None or self.context_tokens is None or self.output_tokens is None:
            raise UsageError("made-up requests need a number, context tokens and output tokens")
        sizes = (self.requests, self.context_tokens, self.output_tokens)
        if self.kind == CLOSED_LOOP:
            return closed_loop(*sizes)
        if self.rate_per_s is None:
            raise UsageError("random arrivals need a rate per second")
        return poisson(self.rate_per_s, *sizes, seed)


@dataclass(frozen=True)
class DisaggregationSpec:
    """Say on how many prefill and decode nodes a scenario runs, and what lies between them.

    `network` names a network profile, `transfer` is full or partial, `prefix_hits` the share of
    every prompt that prefill need not compute, `remote_bytes` the host memory of a prefill node
    for others (None: the network profile's), `at_once` the most hand-overs under way to a decode
    node (None: no bound), `faults` the texts of `--fault`.
    """

    prefill: int
    decode: int
    network: str
    transfer: str
    prefix_hits: float = 0.0
    remote_bytes: int | None = None
    at_once: int | None = None
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScenarioSpec:
    """Name the inputs of a scenario; the defaults are the README's first run.

    `host_bytes` (host memory for KV, per GPU), `hbm_bytes` (of one GPU) and `host_link` (a PCIe
    generation or a measured rate) stand in place of what the profile says.
    """

    profile: str = DEFAULT_PROFILE
    engine: str = DEFAULT_ENGINE
    model: str = DEFAULT_MODEL
    scheme: Scheme = field(default_factory=lambda: load_scheme(DEFAULT_SCHEME))
    traces: tuple[str, ...] = (DEFAULT_TRACE,)
    drafter: str | None = None
    load: LoadSpec = field(default_factory=LoadSpec)
    concurrency: int | None = DEFAULT_CONCURRENCY
    tp: int = 1
    host_bytes: int | None = None
    hbm_bytes: int | None = None
    host_link: str | None = None
    seed: int = 0
    max_steps: int | None = None
    disaggregation: DisaggregationSpec | None = None

    def scenario(self, open_trace: Callable[[str], AttentionTrace] = load_trace) -> Scenario:
        """Load every input; raise InputError or UsageError for the first that cannot be used."""
        profile = with_capacities(load_profile(self.profile), self.hbm_bytes, self.host_link)
        profile.engine(self.engine)
        return Scenario(
            profile=profile,
            engine_name=self.engine,
            model=load_model(self.model),
            scheme=self.scheme,
            traces=tuple(map(open_trace, self.traces)) if self.scheme.selects else (),
            workload=self.load.workload(self.seed),
            concurrency=self.concurrency,
            drafter=self.drafter,
            tp=self.tp,
            host_bytes=self.host_bytes,
            seed=self.seed,
            max_steps=self.max_steps,
        )


def first_requests(workload: Workload, limit: int | None) -> Workload:
    """Return the first `limit` requests of a workload (None: all); warn when it has fewer."""
    if limit is None or limit == workload.requests:
        return workload
    if limit > workload.requests:
        few = f"{limit:,} requests were asked for, the file holds {workload.requests:,}"
        return replace(workload, warnings=(*workload.warnings, few))
    return replace(
        workload,
        arrival_ps=workload.arrival_ps[:limit],
        prompt_tokens=workload.prompt_tokens[:limit],
        output_tokens=workload.output_tokens[:limit],
    )


def every(workload: Workload, step: int) -> Workload:
    """Return every `step`-th request of a workload, from the first on."""
    if step == 1:
        return workload
    return replace(
        workload,
        arrival_ps=workload.arrival_ps[::step],
        prompt_tokens=workload.prompt_tokens[::step],
        output_tokens=workload.output_tokens[::step],
    )
