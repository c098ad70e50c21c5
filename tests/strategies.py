"""Hypothesis strategies shared by all tests, one section per part of the package."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from oasis_sim.engine.spec import LoadSpec, ScenarioSpec
from oasis_sim.model import ModelShape
from oasis_sim.residency.rule import ResidencyRule
from oasis_sim.scheme import Scheme
from oasis_sim.trace import NO_BLOCK, AttentionTrace
from oasis_sim.workload import Workload
from tests.network.plain_sharing import PlainFlow

# --- traces and residency ---------------------------------------------------------------------


def random_orders(
    rng: np.random.Generator,
    complete: NDArray[np.int64],
    shape: tuple[int, int, int],
    jitter: float,
) -> NDArray[np.uint16]:
    """Return orders uint16[T, L, H, M] of the complete blocks, drifting from step to step.

    `complete` int64[T] is the number of blocks each step may name; `shape` is (L, H, M).
    """
    layers, heads, stored = shape
    score = rng.random((layers, heads, int(complete.max(initial=0))))
    orders = np.full((len(complete), *shape), NO_BLOCK, dtype=np.uint16)
    for step, blocks in enumerate(complete):
        score += rng.normal(0.0, jitter, score.shape)
        ranked = np.argsort(-score[:, :, :blocks], axis=-1, kind="stable")[:, :, :stored]
        orders[step, :, :, : ranked.shape[-1]] = ranked
    return orders


def make_trace(
    seed: int,
    *,
    steps: int = 6,
    layers: int = 2,
    heads: int = 2,
    stored: int = 12,
    block_tokens: int = 4,
    prompt: int = 60,
    drafters: tuple[str, ...] = ("ngram",),
    with_mass: bool = True,
    jitter: float = 0.2,
) -> AttentionTrace:
    """Make a small valid trace from random numbers."""
    rng = np.random.default_rng(seed)
    position = np.arange(prompt, prompt + steps, dtype=np.int32)
    complete = position.astype(np.int64) // block_tokens
    shape = (layers, heads, stored)
    blocks = int(complete.max()) + 1
    token = rng.integers(0, 1000, steps + 1).astype(np.int32)
    draft = {
        name: np.where(rng.random(steps) < 0.5, token[1:], token[1:] + 1).astype(np.int32)
        for name in drafters
    }
    accepted = {name: (draft[name] == token[1:]).astype(np.uint8) for name in drafters}
    mass = rng.integers(0, 200, (steps, layers, heads, blocks)).astype(np.uint8)
    mass[np.arange(blocks) > complete[:, None, None, None] + np.zeros_like(mass)] = 0
    meta = {
        "format": "oasis-trace",
        "version": 1,
        "origin": "recorded",
        "name": f"random-{seed}",
        "model": {
            "name": "random",
            "layers": layers,
            "kv_heads": heads,
            "query_heads": 2 * heads,
            "head_dim": 8,
        },
        "layer_ids": list(range(layers)),
        "layer_span": [None] * layers,
        "block_tokens": block_tokens,
        "prompt_tokens": prompt,
        "steps": steps,
        "stored_blocks": stored,
        "aggregation": {"bound": "max", "mass": "mean"},
        "mass_code": "log2-u8-16",
        "drafters": {name: {"accepted": float(accepted[name].mean())} for name in drafters},
        "text": {"name": "random", "licence": "CC0-1.0"},
        "recorder": "tests",
    }
    return AttentionTrace(
        meta=meta,
        position=position,
        token=token,
        use_order=random_orders(rng, complete, shape, jitter),
        pred_order={name: random_orders(rng, complete, shape, jitter) for name in drafters},
        accepted=accepted,
        draft_token=draft,
        mass=mass if with_mass else None,
    )


@st.composite
def attention_traces(draw: st.DrawFn) -> AttentionTrace:
    """Draw small valid traces of every shape: short contexts, no mass, none or two drafters."""
    return make_trace(
        draw(st.integers(0, 2**32 - 1)),
        steps=draw(st.integers(1, 12)),
        layers=draw(st.integers(1, 3)),
        heads=draw(st.integers(1, 3)),
        stored=draw(st.integers(1, 20)),
        block_tokens=draw(st.sampled_from([1, 2, 4, 16])),
        prompt=draw(st.integers(1, 90)),
        drafters=draw(st.sampled_from([(), ("ngram",), ("skip", "n-gram 3")])),
        with_mass=draw(st.booleans()),
        jitter=draw(st.sampled_from([0.0, 0.05, 0.3, 3.0])),
    )


@st.composite
def residency_rules(draw: st.DrawFn, block_tokens: int | None = None) -> ResidencyRule:
    """Draw rules around every edge: no cap, cap 0, pool equal to and above the choice."""
    chosen = draw(st.integers(1, 12))
    pool = chosen + draw(st.integers(0, 8))
    return ResidencyRule(
        chosen_blocks=chosen,
        pool_blocks=pool,
        cap_blocks=draw(st.one_of(st.just(0), st.integers(0, chosen), st.just(pool + 1))),
        sink_blocks=draw(st.integers(0, 2)),
        recent_blocks=draw(st.integers(0, 3)),
        block_tokens=block_tokens or draw(st.sampled_from([1, 2, 4, 16])),
        on_demand=draw(st.booleans()),
        depth_blocks=draw(st.none() | st.integers(0, chosen + 1)),
    )


# --- values and files from outside ------------------------------------------------------------

NOT_FINITE = (float("nan"), float("inf"), float("-inf"))
ABOVE_EXACT = 2**53 + 1
ABOVE_FLOAT = int("9" * 399)
"""An integer that no float can hold: float() of it raises OverflowError."""


def bad_counts(*, zero_is_bad: bool = True) -> st.SearchStrategy[Any]:
    """Return values that no field for a count may accept."""
    bad: list[Any] = [None, True, False, "12", "1e9", "", [], {}, [1], {"a": 1}, 1.5]
    bad += [
        *NOT_FINITE,
        -1,
        -(2**40),
        ABOVE_EXACT,
        ABOVE_FLOAT,
        -ABOVE_FLOAT,
        1e300,
        *([0] if zero_is_bad else []),
    ]
    return st.sampled_from(bad)


def hostile_names() -> st.SearchStrategy[str]:
    """Return names that hold markup, control characters, formulas or escapes."""
    known = ["[red]x[/red]", "[/x/y]", "\x1b[2Jx", "=1+1", "@cmd", "a\nb", "\u202eabc", "a\x07"]
    return st.sampled_from(known) | st.text(min_size=1, max_size=40)


def json_values() -> st.SearchStrategy[Any]:
    """Return any JSON value, NaN and infinities included."""
    scalars = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.sampled_from([ABOVE_FLOAT, -ABOVE_FLOAT])
        | st.floats()
        | st.text(max_size=20)
        | st.sampled_from(["80 Gb", "80 GiB", "3.35 TB/s", "2 us"])
    )
    return st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
        ),
        max_leaves=12,
    )


def file_contents(seed: bytes) -> st.SearchStrategy[bytes]:
    """Return contents of a broken file: junk, or a good file cut, spliced or with flipped bytes."""
    places = st.integers(0, max(len(seed) - 1, 0))

    def flip(changes: list[tuple[int, int]]) -> bytes:
        content = bytearray(seed)
        for place, value in changes:
            content[place] = value
        return bytes(content)

    flipped = st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=6).map(flip)
    cut = places.map(lambda end: seed[:end])
    spliced = st.tuples(places, st.binary(max_size=30)).map(
        lambda parts: seed[: parts[0]] + parts[1] + seed[parts[0] :]
    )
    return st.binary(max_size=200) | cut | flipped | spliced


# --- models, schemes, workloads ---------------------------------------------------------------


@st.composite
def schemes(draw: st.DrawFn) -> Scheme:
    """Return any scheme without contradictions."""
    offload = draw(st.booleans())
    block_tokens = draw(st.sampled_from([1, 8, 16, 32]))
    sink, recent = draw(st.integers(0, 3)), draw(st.integers(1, 3))
    budget_blocks = draw(st.integers(sink + recent + 1, 256))
    common = {
        "name": draw(st.text("abc-", min_size=1, max_size=8)),
        "unit": "token" if block_tokens == 1 else "block",
        "block_tokens": block_tokens,
        "budget_tokens": block_tokens * budget_blocks,
        "sink_blocks": sink,
        "recent_blocks": recent,
        "recent_in_budget": draw(st.booleans()),
    }
    if not offload:
        return Scheme(
            offload=False,
            predictor="current",
            lookahead="none",
            draft_row=False,
            compressed_keys=False,
            **common,
        )
    predictor = draw(st.sampled_from(["draft", "previous", "current", "oracle"]))
    is_draft = predictor == "draft"
    ratio = draw(st.none() | st.floats(0.0, 1.0))
    return Scheme(
        predictor=predictor,
        lookahead="none" if predictor == "current" else "one_step",
        draft_row=is_draft,
        draft_kv_bytes_per_token=draw(st.none() | st.integers(0, 8192)) if is_draft else None,
        pool_factor=draw(st.floats(1.0, 4.0)),
        fetch_ratio=ratio,
        cap_blocks=draw(st.none() | st.integers(0, 300)) if ratio is None else None,
        transport=draw(st.sampled_from(["sm_gather", "copy_engine", "naive"])),
        **common,
    )


@st.composite
def models(draw: st.DrawFn) -> ModelShape:
    """Return a small model shape, dense or with experts."""
    kv_heads = draw(st.integers(1, 8))
    experts = draw(st.sampled_from([0, 4, 16]))
    return ModelShape(
        name="model",
        layers=draw(st.integers(1, 40)),
        hidden=draw(st.integers(1, 64)) * 8,
        intermediate=draw(st.integers(1, 512)),
        query_heads=kv_heads * draw(st.integers(1, 4)),
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([16, 64, 128])),
        vocab=draw(st.integers(1, 5000)),
        tied_embeddings=draw(st.booleans()),
        max_context=draw(st.integers(1, 2**17)),
        experts=experts,
        experts_per_token=draw(st.integers(1, experts)) if experts else 0,
        moe_intermediate=draw(st.integers(1, 128)) if experts else 0,
        qk_norm=draw(st.booleans()),
        qkv_bias=draw(st.booleans()),
    )


def request_rows(
    span_ms: int = 10**7, prompt: int = 10**6, output: int = 10**5, most: int = 20
) -> st.SearchStrategy[list[tuple[int, int, int]]]:
    """Return requests as (arrival in ms, prompt tokens, output tokens), in any order."""
    rows = st.tuples(st.integers(0, span_ms), st.integers(1, prompt), st.integers(1, output))
    return st.lists(rows, min_size=1, max_size=most)


@st.composite
def workloads(draw: st.DrawFn, **limits: int) -> Workload:
    """Return a workload of a few requests; `limits` are those of `request_rows`."""
    rows = sorted(draw(request_rows(**limits)))
    table = np.array(rows, dtype=np.int64)
    return Workload(
        name="workload",
        format="csv",
        arrival_ps=table[:, 0] * 10**9,
        prompt_tokens=table[:, 1],
        output_tokens=table[:, 2],
    )


# --- scenarios by name ------------------------------------------------------------------------


@st.composite
def scenario_specs(draw: st.DrawFn) -> ScenarioSpec:
    """Draw a scenario by name: any names, any load, any scheme."""
    tokens = st.integers(1, 2**20)
    sizes = {"context_tokens": draw(tokens), "output_tokens": draw(tokens)}
    count = draw(st.integers(1, 10**6))
    load = draw(
        st.sampled_from(
            [
                LoadSpec("closed_loop", count, **sizes),
                LoadSpec("poisson", count, **sizes, rate_per_s=draw(st.floats(1e-3, 1e6))),
                LoadSpec("file", None, None, None, file=draw(hostile_names()), format="mooncake"),
                LoadSpec("file", count, None, None, file="day.csv", format="csv"),
            ]
        )
    )
    return ScenarioSpec(
        profile=draw(hostile_names()),
        engine=draw(st.sampled_from(["roofline", "vllm", "gpu_exec"])),
        model=draw(hostile_names()),
        scheme=draw(schemes()),
        traces=tuple(draw(st.lists(hostile_names(), min_size=1, max_size=3))),
        drafter=draw(st.none() | hostile_names()),
        load=load,
        concurrency=draw(st.none() | st.integers(1, 10**6)),
        tp=draw(st.integers(1, 1024)),
        host_bytes=draw(st.none() | st.integers(0, 2**53)),
        seed=draw(st.integers(0, 2**32 - 1)),
        max_steps=draw(st.none() | st.integers(1, 10**9)),
    )


# --- networks ---------------------------------------------------------------------------------


@st.composite
def fabric_loads(draw: st.DrawFn) -> tuple[list[PlainFlow], list[int]]:
    """Draw flows between directed NICs, and the NICs' rates in bytes per second."""
    nodes = draw(st.integers(1, 4))
    rates = draw(st.lists(st.integers(10**8, 10**11), min_size=2 * nodes, max_size=2 * nodes))
    ends = st.integers(0, nodes - 1)
    flows = st.builds(
        lambda out, into, left, limit, start: PlainFlow(
            (2 * out, 2 * into + 1), Fraction(left), Fraction(limit, 10**12), start
        ),
        ends,
        ends,
        st.integers(1, 10**7),
        st.integers(10**7, 10**11),
        st.integers(0, 10**9),
    )
    return draw(st.lists(flows, min_size=1, max_size=12)), rates
