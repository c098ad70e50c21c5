"""From options to the requests of a scenario, and how many of them may run at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from oasis_sim.errors import UsageError

if TYPE_CHECKING:
    from oasis_sim.engine.spec import LoadSpec, ScenarioSpec

WORKLOAD_FORMATS = ("mooncake", "azure", "burstgpt", "vidur", "bailian", "csv")


def load_from(values: Mapping[str, Any], base: ScenarioSpec) -> LoadSpec:
    """Return the requests that options describe, on top of those of `base`."""
    from oasis_sim.engine.spec import CLOSED_LOOP, FILE, POISSON, LoadSpec

    if values["workload"] is not None and values["rate"] is not None:
        raise UsageError("--rate and --workload contradict each other: a file has its own arrivals")
    old, file = base.load, values["workload"]
    if file is None and old.kind == FILE and values["rate"] is None:
        file = old.file
    if file is not None:
        return _file_load(values, old, file)
    for option in ("workload_format", "every"):
        if values[option] is not None:
            raise UsageError(f"--{option.replace('_', '-')} needs --workload FILE")
    kept = LoadSpec() if old.kind == FILE else old
    rate = kept.rate_per_s if values["rate"] is None else values["rate"]
    return LoadSpec(
        CLOSED_LOOP if rate is None else POISSON,
        values["requests"] or kept.requests,
        values["context"] or kept.context_tokens,
        values["output_tokens"] or kept.output_tokens,
        rate,
    )


def _file_load(values: Mapping[str, Any], old: LoadSpec, file: str) -> LoadSpec:
    from oasis_sim.engine.spec import FILE, LoadSpec

    for option in ("context", "output_tokens"):
        if values[option] is not None:
            name = option.replace("_", "-")
            raise UsageError(f"--{name} and --workload contradict each other: the file says it")
    file_format = values["workload_format"] or old.format
    if file_format is None:
        known = ", ".join(WORKLOAD_FORMATS)
        raise UsageError(f"--workload needs --workload-format, one of {known}")
    requests = values["requests"] or (old.requests if old.kind == FILE else None)
    every = values["every"] or old.every
    return LoadSpec(FILE, requests, None, None, file=file, format=file_format, every=every)


def concurrency_from(values: Mapping[str, Any], base: ScenarioSpec, load: LoadSpec) -> int | None:
    """Return the limit of requests at once: the option, or what `base` has for such a load."""
    if values["concurrency"] is not None:
        return int(values["concurrency"])
    return base.concurrency if load.kind == base.load.kind else None
