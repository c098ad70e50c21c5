"""The shipped recordings: their headers, their texts, and what they show, as the documents say."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path

import pytest

from oasis_sim.fileio import read_bytes
from oasis_sim.residency.stats import trace_stats
from oasis_sim.trace import load_trace

ROOT = Path(__file__).parents[2]
TRACES = ROOT / "traces"
SMOLLM2 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GEMMA3 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
TEXTS = {
    "smollm2-prose": ("prose.txt", "CC0-1.0"),
    "smollm2-code": ("library_code.txt", "CC0-1.0"),
    "smollm2-question": ("handbook.txt", "CC0-1.0"),
    "smollm2-code8k": ("project_code.txt.gz", "Apache-2.0"),
    "gemma3-270m-prose": ("prose.txt", "CC0-1.0"),
    "gemma3-270m-code": ("project_code.txt.gz", "Apache-2.0"),
    "gemma3-270m-question": ("project_docs.txt.gz", "Apache-2.0"),
}
FEW_MB = 8e6


@pytest.fixture(scope="module", params=sorted(TEXTS))
def shipped(request):
    """Return one shipped recording."""
    return load_trace(TRACES / f"{request.param}.npz")


def test_header_is_complete_and_names_its_text(shipped):
    """Model, text, licences, drafters, command are there; the text is the one beside it."""
    meta, name = shipped.meta, shipped.name
    assert ((), "recorded") == (shipped.warnings, shipped.origin)
    smollm2 = name.startswith("smollm2")
    model = meta["model"]
    assert (SMOLLM2 if smollm2 else GEMMA3) == model["sha256"]
    assert ("Apache-2.0" if smollm2 else "Gemma Terms of Use") == model["licence"]
    assert 64 == len(model["tokenizer_sha256"])
    text, licence = TEXTS[name]
    digest = hashlib.sha256(read_bytes(TRACES / "texts" / text, 1 << 20)).hexdigest()
    found = tuple(meta["text"][key] for key in ("name", "licence", "sha256"))
    assert (text, licence, digest) == found
    assert 1.0 < meta["text"]["perplexity"] < 40.0
    for drafter, about in meta["drafters"].items():
        assert shipped.accepted[drafter].mean() == pytest.approx(about["accepted"])
    assert shipped.stored_blocks == (shipped.position[-1] + 1) // shipped.block_tokens
    assert meta["recording"]["command"].startswith(
        f"oasis-sim record {model['file']} --text {text}"
    )


def test_drafts_predict_better_than_the_previous_token(shipped):
    """At 512 and 1,024 tokens the draft's set overlaps more with the true one."""
    rows = trace_stats(shipped, [512, 1024], [1.0], ["previous", "draft"])
    lead = 0.08 if shipped.name.startswith("smollm2") else 0.0
    for previous, draft in (rows[:2], rows[2:]):
        assert previous.overlap + lead < draft.overlap
        assert 0.5 < previous.overlap < 0.95
        assert 0.3 < draft.attention_mass < 1.0


def test_accepted_drafts_predict_nearly_the_whole_set(shipped):
    """After an accepted draft its order holds over 90 % of the next true set at 512 tokens."""
    trace = shipped
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
    assert sum(shares) / len(shares) > 0.9


def test_shipped_recordings_are_few_megabytes():
    """The repository stays small, and the names above are all recordings that come along."""
    files = sorted(TRACES.glob("*.npz"))
    assert sorted(TEXTS) == [path.stem for path in files]
    texts = (TRACES / "texts").iterdir()
    assert sum(path.stat().st_size for path in (*files, *texts)) < FEW_MB


def test_documented_numbers_are_those_of_the_traces():
    """The committed file, the traces and the table of docs/recording.md agree in every row."""
    spec = importlib.util.spec_from_file_location(
        "recording_check", ROOT / "benchmarks" / "recording_check.py"
    )
    check = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check)
    committed = json.loads((ROOT / "validation" / "recordings.json").read_text("utf-8"))
    rows = [row for name in sorted(TEXTS) for row in check.rows_of(name)]
    key = ("trace", "budget_tokens")
    expected = {tuple(row[each] for each in key): row for row in committed["rows"]}
    page = (ROOT / "docs" / "recording.md").read_text("utf-8")
    assert len(expected) == len(rows)
    for row in rows:
        assert expected[tuple(row[each] for each in key)] == pytest.approx(row, abs=1e-9)
        assert check.markdown(row) in page


def test_real_models_agree_with_the_library_alone():
    """Orders differ where scores are equal up to rounding, masses by less than 1e-4."""
    check = json.loads((ROOT / "validation" / "recorder-check.json").read_text("utf-8"))
    smollm2, gemma3 = check["models"]
    assert (SMOLLM2, GEMMA3) == (smollm2["model"]["sha256"], gemma3["model"]["sha256"])
    assert (0, 15, 256) == (
        smollm2["layers_with_windows"],
        gemma3["layers_with_windows"],
        gemma3["head_dim"],
    )
    page = (ROOT / "docs" / "recording.md").read_text("utf-8")
    for found in (smollm2, gemma3):
        assert found["largest_mass_difference"] < 1e-4
        assert found["largest_gap_of_exchanged_scores"] < 1e-5
        assert f"{found['places']:,}; {found['places_that_differ']}" in page


def test_recordings_lie_where_an_independent_one_does():
    """Means of three texts are within 0.03, mass at 512 tokens within the spread of the texts."""
    committed = json.loads((ROOT / "validation" / "recordings.json").read_text("utf-8"))
    for name in ("compared", "compared_all_layers"):
        assert [512, 1024] == [each["budget_tokens"] for each in committed[name]]
        for each in committed[name]:
            for key, distance in each["distance"].items():
                beyond = key.startswith("mass") and each["budget_tokens"] == 512
                assert abs(distance) < (each["spread_of_texts"][key] if beyond else 0.03)


def test_a_text_of_the_same_kind_lies_within_three_hundredths():
    """Technical documentation beside technical documentation: every number, both budgets."""
    committed = json.loads((ROOT / "validation" / "recordings.json").read_text("utf-8"))
    page = (ROOT / "docs" / "recording.md").read_text("utf-8")
    alike = {each["budget_tokens"]: each for each in committed["alike"]}
    for budget in (512, 1024):
        assert 8 == len(alike[budget]["distance"])
        for distance in alike[budget]["distance"].values():
            assert abs(distance) < 0.03
            assert f"| {distance:+.3f} |" in page
