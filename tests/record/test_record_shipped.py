"""The shipped recordings: their headers, their texts and what they must show."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from oasis_sim.residency.stats import trace_stats
from oasis_sim.trace import load_trace

TRACES = Path(__file__).parents[2] / "traces"
TEXTS = {"prose": "prose.txt", "code": "library_code.txt", "question": "handbook.txt"}


@pytest.fixture(scope="module", params=sorted(TEXTS))
def shipped(request):
    """Return one shipped recording and the name of its text."""
    return load_trace(f"smollm2-{request.param}"), TEXTS[request.param]


def test_header_is_complete_and_names_its_text(shipped):
    """Model, text, licence, drafters and recorder are there; the text is the one beside it."""
    trace, text = shipped
    meta = trace.meta
    assert () == trace.warnings
    assert "recorded" == trace.origin
    assert "SmolLM2-135M-Instruct" == meta["model"]["name"]
    assert (
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
        == (meta["model"]["sha256"])
    )
    digest = hashlib.sha256((TRACES / "texts" / text).read_bytes()).hexdigest()
    assert (text, "CC0-1.0", digest) == tuple(
        meta["text"][k] for k in ("name", "licence", "sha256")
    )
    assert 1.0 < meta["text"]["perplexity"] < 40.0
    for name, drafter in meta["drafters"].items():
        assert trace.accepted[name].mean() == pytest.approx(drafter["accepted"])
    assert trace.stored_blocks == (trace.position[-1] + 1) // trace.block_tokens


def test_drafts_predict_better_than_the_previous_token(shipped):
    """At 512 and 1,024 tokens the draft's set overlaps more with the true one, by 8 points."""
    trace, _ = shipped
    rows = trace_stats(trace, [512, 1024], [1.0], ["previous", "draft"])
    for previous, draft in (rows[:2], rows[2:]):
        assert previous.overlap + 0.08 < draft.overlap
        assert 0.65 < previous.overlap < 0.85
        assert 0.7 < draft.attention_mass < 1.0


def test_accepted_drafts_predict_nearly_the_whole_set(shipped):
    """After an accepted draft its order holds over 93 % of the next true set at 512 tokens."""
    trace, _ = shipped
    drafter = trace.drafters[0]
    chosen, shares = 512 // trace.block_tokens - 3, []
    for step in range(1, trace.steps):
        if not trace.accepted[drafter][step - 1]:
            continue
        last = int(trace.position[step]) // trace.block_tokens - 2
        for layer in range(trace.layers):
            for head in range(trace.kv_heads):
                sets = [
                    [b for b in order.tolist() if 1 <= b <= last][:chosen]
                    for order in (
                        trace.use_order[step, layer, head],
                        trace.pred_order[drafter][step - 1, layer, head],
                    )
                ]
                shares.append(len(set(sets[0]) & set(sets[1])) / chosen)
    assert sum(shares) / len(shares) > 0.93
