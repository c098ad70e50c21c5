"""Small scenarios for the engine's tests: a tiny model, a random trace, a card of any size."""

from __future__ import annotations

import dataclasses

import numpy as np

from oasis_sim.engine import Scenario
from oasis_sim.hardware import HardwareProfile, load_profile
from oasis_sim.model import ModelShape
from oasis_sim.scheme import Scheme, load_scheme, with_options
from oasis_sim.trace import AttentionTrace
from oasis_sim.workload import Workload, closed_loop

TINY = ModelShape(
    name="tiny",
    layers=4,
    hidden=512,
    intermediate=1024,
    query_heads=8,
    kv_heads=2,
    head_dim=64,
    vocab=1000,
    tied_embeddings=False,
    max_context=100_000,
)


def random_trace(
    steps: int = 12, layers: int = 2, heads: int = 2, blocks: int = 96, seed: int = 1
) -> AttentionTrace:
    """Return a synthetic trace of slowly changing random orders and masses at block 16."""
    random = np.random.default_rng(seed)
    score = random.normal(size=(1, layers, heads, blocks))
    score = score + 0.5 * random.normal(size=(steps + 1, layers, heads, blocks))
    order = np.argsort(-score, axis=-1, kind="stable").astype(np.uint16)
    mass = np.zeros((steps, layers, heads, blocks + 1), dtype=np.uint8)
    mass[..., :blocks] = np.clip(140 + 20 * score[:steps], 1, 255)
    position = np.arange(steps, dtype=np.int32) + blocks * 16
    meta = {
        "format": "oasis-trace",
        "version": 1,
        "origin": "synthetic",
        "name": "random",
        "model": {
            "name": "tiny",
            "layers": max(4, layers),
            "kv_heads": 2,
            "query_heads": 8,
            "head_dim": 64,
        },
        "layer_ids": list(range(layers)),
        "layer_span": [None] * layers,
        "block_tokens": 16,
        "prompt_tokens": blocks * 16,
        "steps": steps,
        "stored_blocks": blocks,
        "aggregation": {"bound": "max", "mass": "mean"},
        "mass_code": "log2-u8-16",
        "drafters": {"next": {"accepted": 1.0}},
        "text": {"name": "none", "licence": "CC0-1.0"},
        "recorder": "test",
        "synthetic": {"seed": seed, "parameters": {}, "calibrated_to": "nothing"},
    }
    return AttentionTrace(
        meta=meta,
        position=position,
        token=np.zeros(steps + 1, dtype=np.int32),
        use_order=order[:steps],
        pred_order={"next": order[1:]},
        accepted={"next": np.ones(steps, dtype=np.uint8)},
        draft_token={"next": np.zeros(steps, dtype=np.int32)},
        mass=mass,
    )


def card(hbm_bytes: int, host_bytes: int = 10**12) -> HardwareProfile:
    """Return the h100 profile with another HBM and host capacity and no reserve."""
    profile = load_profile("h100")
    engines = {
        name: dataclasses.replace(costs, reserved_bytes=0, reserved_split_bytes=0, hbm_share=1.0)
        for name, costs in profile.engines.items()
    }
    return dataclasses.replace(
        profile,
        gpu=dataclasses.replace(profile.gpu, hbm_bytes=hbm_bytes),
        host=dataclasses.replace(profile.host, kv_bytes=host_bytes),
        engines=engines,
    )


def small_scheme(name: str = "oasis", **options: object) -> Scheme:
    """Return a preset with a budget of 512 tokens that fits the random trace."""
    scheme = load_scheme(name)
    if not scheme.selects:
        return scheme
    parts: dict[str, object] = {"budget_tokens": 512, "draft_kv_bytes_per_token": 0}
    if scheme.recent_in_budget:
        parts |= {"sink_blocks": 4, "recent_blocks": 4}
    if scheme.generation_buffer_tokens:
        parts["generation_buffer_tokens"] = 64
    return with_options(scheme, **{**parts, **options})


def scenario(
    scheme: str | Scheme = "oasis",
    engine: str = "vllm",
    workload: Workload | None = None,
    profile: HardwareProfile | None = None,
    **options: object,
) -> Scenario:
    """Return a small scenario: 6 requests of 1,024 + 40 tokens, three at a time."""
    chosen = small_scheme(scheme) if isinstance(scheme, str) else scheme
    return Scenario(
        profile=profile or card(8 * 10**9),
        engine_name=engine,
        model=TINY,
        scheme=chosen,
        traces=(random_trace(),) if chosen.selects else (),
        workload=workload or closed_loop(6, 1024, 40),
        **{"concurrency": 3, **options},
    )
