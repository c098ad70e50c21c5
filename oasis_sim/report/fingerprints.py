"""Fingerprints of inputs: what a config file or a sweep was made from, told apart by content."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from oasis_sim.engine.scenario import Scenario
from oasis_sim.hardware import HardwareProfile
from oasis_sim.network import NetworkProfile
from oasis_sim.trace import AttentionTrace
from oasis_sim.workload import Workload


def fingerprints(scenario: Scenario, network: NetworkProfile | None = None) -> dict[str, str]:
    """Return a SHA-256 of each input's content, however its file is called or compressed.

    Of profiles it is what numbers follow from: where they come from may be told in other words.
    """
    found = {
        "profile": _digest(repr(_without_prose(scenario.profile)).encode()),
        "model": _digest(repr(scenario.model).encode()),
        "workload": _workload_digest(scenario.workload),
    }
    if network is not None:
        numbers = replace(network, title="", origin="", sources={})
        found["network"] = _digest(repr(numbers).encode())
    for number, trace in enumerate(scenario.traces, start=1):
        found[f"trace_{number}"] = _trace_digest(trace)
    return found


def _without_prose(profile: HardwareProfile) -> HardwareProfile:
    engines = {name: replace(costs, source="") for name, costs in profile.engines.items()}
    gpu = replace(profile.gpu, title="")
    return replace(profile, origin="", sources={}, gpu=gpu, engines=engines)


def _digest(*parts: bytes) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little"))
        whole.update(part)
    return whole.hexdigest()


def _workload_digest(workload: Workload) -> str:
    arrays = (workload.arrival_ps, workload.prompt_tokens, workload.output_tokens)
    return _digest(*(array.tobytes() for array in arrays))


def _trace_digest(trace: AttentionTrace) -> str:
    parts = [json.dumps(dict(trace.meta), sort_keys=True, default=str).encode()]
    arrays: list[npt.NDArray[Any]] = [trace.position, trace.token, trace.use_order]
    for group in (trace.pred_order, trace.accepted, trace.draft_token):
        arrays += [group[name] for name in sorted(group)]
    if trace.mass is not None:
        arrays.append(trace.mass)
    return _digest(*parts, *(array.tobytes() for array in arrays))
