"""A plan as plain values: every number with its unit in its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oasis_sim import __version__
from oasis_sim.metrics.distribution import significant
from oasis_sim.plan.binding import bindings
from oasis_sim.plan.evidence import Evidence
from oasis_sim.plan.fleet import Fleet, shortfall
from oasis_sim.plan.needs import LINKS, energy_kwh_per_million_tokens
from oasis_sim.plan.plan_view import Plan, notes, sentences
from oasis_sim.plan.probe import Probe
from oasis_sim.plan.repeat import run_command
from oasis_sim.plan.sensitivity import TITLES, Finding, Reach
from oasis_sim.plan.slo import Reading
from oasis_sim.units import PS_PER_MS

SCHEMA_VERSION = 1


def as_json(plan: Plan, evidence: Evidence | None = None) -> dict[str, Any]:
    """Return the plan as plain values, with what a report shows besides where it is there."""
    ranked = plan.ranked()
    return {
        "schema_version": SCHEMA_VERSION,
        "oasis_sim_version": __version__,
        "command": plan.asked.command,
        "inputs": dict(plan.asked.inputs),
        "fingerprints": {name: dict(each) for name, each in plan.asked.fingerprints.items()},
        "targets": [
            {"name": target.name, "limit_ms": target.limit_ps / PS_PER_MS}
            for target in plan.answers[0].job.targets
        ],
        "currency": plan.prices.currency or None,
        "fleets": [_fleet_json(plan, fleet) for fleet in ranked],
        "impossible": [
            {
                "profile": answer.job.spec.profile,
                "scheme": answer.job.spec.scheme.name,
                "tried": list(answer.tried),
            }
            for answer in plan.answers
            if answer.fleet is None
        ],
        "sensitivity": [_finding_json(finding, ranked[0].meets) for finding in plan.findings],
        "reach": None if plan.reach is None else _reach_json(plan.reach),
        "where_offload_pays": [
            {
                "scheme": each.scheme,
                "context_tokens": each.context_tokens,
                "concurrency": list(each.offload),
                "output_tokens_per_s": list(each.offload.values()),
                "dense_output_tokens_per_s": list(each.dense.values()),
                "ahead_at": each.ahead(),
                "other_contexts": [
                    {
                        "context_tokens": border.context_tokens,
                        "loses_at": border.loses_at,
                        "pays_at": border.pays_at,
                    }
                    for border in each.borders
                ],
            }
            for each in plan.crossovers
        ],
        "evidence": None if evidence is None else evidence.to_json(),
        "sentences": sentences(plan),
        "notes": notes(plan),
    }


def _fleet_json(plan: Plan, fleet: Fleet) -> dict[str, Any]:
    cost, probe = plan.cost(fleet), fleet.meets
    energy = energy_kwh_per_million_tokens(fleet)
    return {
        "profile": fleet.spec.profile,
        "profile_origin": fleet.profile_origin,
        "scheme": fleet.spec.scheme.name,
        "gpus": fleet.gpus,
        "replicas": fleet.replicas,
        "tp": fleet.spec.tp,
        **_sizes_json(fleet),
        "larger_fails": fleet.larger_fails,
        "why_fewer_fail": why_fewer_fail(fleet),
        "binding": bindings(fleet),
        "targets": [_reading_json(each) for each in probe.readings],
        "requests_per_replica": int(probe.summary["scenario"]["requests"]),
        "simulations": fleet.simulations,
        "output_tokens_per_s": significant(fleet.output_tokens_per_s),
        "running_batch_mean": probe.summary["steps"]["running_batch"]["mean"],
        **_capacities_json(probe.summary),
        "cost_per_million_output_tokens": None if cost is None else significant(cost),
        "energy_kwh_per_million_output_tokens_at_most": None
        if energy is None
        else significant(energy),
        "gpu_power_w": fleet.gpu_power_w,
        "command": run_command(fleet),
        "replica": dict(probe.summary),
    }


def _sizes_json(fleet: Fleet) -> dict[str, Any]:
    """Return which smaller fleets fail; the nodes of a fleet whose prefill has its own."""
    nodes = fleet.spec.disaggregation
    if nodes is None:
        return {"fails_with_replicas": fleet.replicas - 1 if fleet.fewer else None}
    return {
        "fails_with_replicas": None,
        "prefill_nodes": nodes.prefill,
        "decode_nodes": nodes.decode,
        "fails_with_nodes": [each.size for each in fleet.fewer],
    }


def why_fewer_fail(fleet: Fleet) -> str | None:
    """Return what one replica fewer misses, or one node fewer of each kind; None: not asked."""
    if fleet.spec.disaggregation is None:
        return shortfall(fleet.fewer[0].probe) if fleet.fewer else None
    return "; ".join(each.sentence() for each in fleet.fewer) or None


def _capacities_json(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a GPU takes of each capacity, and each capacity as resolved."""
    found: dict[str, Any] = {}
    for tier in ("hbm", "host"):
        found[f"{tier}_peak_bytes"] = summary["tiers"][tier]["peak_bytes"]
        found[f"{tier}_capacity_bytes"] = summary["tiers"][tier]["capacity_bytes"]
    for link in LINKS:
        values = summary["links"].get(link)
        for key in ("gb_per_s_mean", "limit_gb_per_s", "utilisation"):
            found[f"{link}_{key}"] = values[key] if values else None
    return found


def _reading_json(each: Reading) -> dict[str, Any]:
    return {
        "name": each.target.name,
        "limit_ms": each.limit_ms,
        "value_ms": None if each.value_ms is None else significant(each.value_ms),
        "head_room": None if each.head_room is None else significant(each.head_room),
    }


def _finding_json(finding: Finding, before: Probe) -> dict[str, Any]:
    same = finding.same
    return {
        "change": finding.question.kind,
        "title": TITLES[finding.question.kind],
        "gpus": finding.gpus,
        "nodes": finding.nodes or None,
        "same_fleet_meets": None if same is None else same.met,
        "same_fleet_targets": []
        if same is None
        else [_reading_json(each) for each in same.readings],
        "sentence": finding.sentence(before),
    }


def _reach_json(reach: Reach) -> dict[str, Any]:
    fails = reach.fails_probe
    return {
        "meets_at_times_the_rate": float(reach.meets),
        "fails_at_times_the_rate": None if reach.fails is None else float(reach.fails),
        "why_it_fails": None if fails is None else shortfall(fails),
        "running_batch_mean": reach.meets_probe.summary["steps"]["running_batch"]["mean"],
        "sentence": reach.sentence(),
    }
