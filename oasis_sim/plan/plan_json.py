"""A plan as plain values: every number with its unit in its name."""

from __future__ import annotations

from typing import Any

from oasis_sim.metrics.distribution import significant
from oasis_sim.plan.plan_view import Plan, binding, run_command, sentences
from oasis_sim.plan.planner import Fleet, shortfall

SCHEMA_VERSION = 1


def as_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as plain values."""
    return {
        "schema_version": SCHEMA_VERSION,
        "currency": plan.prices.currency or None,
        "fleets": [_fleet_json(plan, fleet) for fleet in plan.ranked()],
        "impossible": [
            {
                "profile": answer.job.spec.profile,
                "scheme": answer.job.spec.scheme.name,
                "tried": list(answer.tried),
            }
            for answer in plan.answers
            if answer.fleet is None
        ],
        "sensitivity": [
            {
                "change": finding.question.kind,
                "gpus": None
                if finding.bracket is None or finding.bracket.enough is None
                else finding.bracket.enough * finding.question.spec.tp,
                "sentence": finding.sentence(),
            }
            for finding in plan.findings
        ],
        "where_offload_pays": [
            {
                "scheme": each.scheme,
                "concurrency": list(each.offload),
                "output_tokens_per_s": list(each.offload.values()),
                "dense_output_tokens_per_s": list(each.dense.values()),
                "ahead_at": each.ahead(),
            }
            for each in plan.crossovers
        ],
        "sentences": sentences(plan),
    }


def _fleet_json(plan: Plan, fleet: Fleet) -> dict[str, Any]:
    cost, probe = plan.cost(fleet), fleet.meets
    return {
        "profile": fleet.spec.profile,
        "profile_origin": fleet.profile_origin,
        "scheme": fleet.spec.scheme.name,
        "gpus": fleet.gpus,
        "replicas": fleet.replicas,
        "tp": fleet.spec.tp,
        "fails_with_replicas": fleet.bracket.fails or None,
        "why_fewer_fail": None if fleet.fails is None else shortfall(fleet.fails),
        "binding": binding(fleet.fails or probe),
        "targets": [
            {
                "name": each.target.name,
                "limit_ms": each.limit_ms,
                "value_ms": None if each.value_ms is None else significant(each.value_ms),
                "head_room": None if each.head_room is None else significant(each.head_room),
            }
            for each in probe.readings
        ],
        "requests_per_replica": int(probe.summary["scenario"]["requests"]),
        "simulations": fleet.simulations,
        "output_tokens_per_s": significant(fleet.output_tokens_per_s),
        "pcie_h2d_utilisation": probe.summary["links"]["pcie_h2d"]["utilisation"],
        "hbm_peak_bytes": probe.summary["tiers"]["hbm"]["peak_bytes"],
        "host_peak_bytes": probe.summary["tiers"]["host"]["peak_bytes"],
        "cost_per_million_output_tokens": None if cost is None else significant(cost),
        "command": run_command(fleet),
    }
