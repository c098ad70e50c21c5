"""The ideal engine: every stage at the hardware's limit, nothing lost between stages."""

from __future__ import annotations

import math

from oasis_sim.curve import Curve
from oasis_sim.hardware.profile import (
    EngineCosts,
    Launch,
    LinearEfficiency,
    Link,
    Prefill,
    Selection,
    Slowdown,
    Transport,
)

TRANSPORTS = ("sm_gather", "copy_engine", "naive", "cpu_gather")


def roofline_costs(pcie: Link) -> EngineCosts:
    """Return costs of an engine whose stages all run at the limits of the profile.

    Blocks move at the link's nominal rate whatever their size, neighbours do not disturb each
    other on the link, all of HBM may hold weights and KV.
    """
    whole = Curve.constant(1.0)
    undisturbed = Slowdown(linear=whole, attention=1.0, prediction=1.0)
    # Prediction reads HBM at its full rate, so nothing else can while it runs.
    stopped = Slowdown(linear=Curve.constant(math.inf), attention=math.inf, prediction=1.0)
    ideal = Transport(Curve.constant(pcie.bytes_per_s), fixed_ps=0, slowdown=undisturbed)
    return EngineCosts(
        name="roofline",
        source="derived: each stage takes max(bytes / bandwidth, FLOPs / peak)",
        linear_efficiency=LinearEfficiency.same(whole),
        expert_efficiency=whole,
        attention_efficiency=whole,
        dense_attention_efficiency=whole,
        scan_efficiency=whole,
        selection=Selection(fixed_ps=0, per_head_ps=0.0, per_candidate_ps=0.0),
        draft_layers=Curve.constant(0.0),
        launch=Launch(
            gap_ps=0,
            kernels_per_layer=0,
            step_ps=0,
            request_ps=0,
            dense_step_ps=0,
            dense_request_ps=0,
        ),
        prefill=Prefill(efficiency=1.0, chunk_tokens=8192),
        collective_ps=0,
        transports=dict.fromkeys(TRANSPORTS, ideal),
        prediction_slowdown=stopped,
        selection_slowdown=undisturbed,
        hbm_share=1.0,
        reserved_bytes=0,
    )
