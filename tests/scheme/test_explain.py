"""A scheme in words and as a picture, both from its parts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from oasis_sim.scheme import Scheme, load_scheme, scheme_names, with_options
from oasis_sim.scheme.check import WORDS
from oasis_sim.scheme.explain import EVICTED, LEAVES, TRANSPORTS, WHO, explain
from oasis_sim.scheme.picture import LANES, MARGIN
from tests.strategies import schemes


def lanes_of(scheme: Scheme) -> dict[str, str]:
    """Return the lines of a picture by stream."""
    return {line[:MARGIN].strip(): line[MARGIN:] for line in explain(scheme).picture[1:]}


@given(schemes())
def test_every_scheme_can_be_explained(scheme: Scheme) -> None:
    """Any valid parts give words for each question and a picture of known streams."""
    found = explain(scheme)
    assert found.resident
    assert found.moves
    assert found.waits
    assert set(lanes_of(scheme)) <= set(LANES)
    assert all(line.isascii() and len(line) < 100 for line in found.picture)


@given(schemes())
def test_only_the_parts_decide(scheme: Scheme) -> None:
    """Another name and title change nothing."""
    assert explain(scheme) == explain(replace(scheme, name="other", title="x", description="y"))


@given(schemes())
def test_the_picture_keeps_the_order_of_things(scheme: Scheme) -> None:
    """Scan, selection and transfer follow QKV and one another; attention follows what it needs."""
    lanes = lanes_of(scheme)
    background = [lanes[lane] for lane in LANES[1:] if lane in lanes]
    ready = len("[QKV]") if background else 0
    for line in background:
        assert line.index("[") == ready
        ready = line.index("]") + 1
    if background:
        assert lanes["compute"].rindex("[attention]") >= ready
    assert ("transfer" in lanes) == scheme.offload


@pytest.mark.parametrize("name", ["on-demand", "hisparse", "shadowkv", "quest"])
def test_what_is_on_the_critical_path_is_waited_for(name: str) -> None:
    """Compute waits between QKV and attention of the same layer."""
    compute = lanes_of(load_scheme(name))["compute"]
    assert compute.startswith("[QKV]...")
    assert "other layers" not in compute


@pytest.mark.parametrize("name", ["oasis", "previous-token", "oracle"])
def test_lookahead_hides_behind_the_other_layers(name: str) -> None:
    """Nothing waits, and misses above the cap are said to be left out."""
    scheme = load_scheme(name)
    assert "..." not in lanes_of(scheme)["compute"].removesuffix(" ...")
    assert any("not attended" in text for text in explain(scheme).waits)
    full = with_options(scheme, fetch_ratio=1.0)
    assert not any("not attended" in text for text in explain(full).waits)


def test_numbers_are_those_of_the_scheme() -> None:
    """Slots, cap and draft KV follow options."""
    scheme = with_options(load_scheme("oasis"), pool_factor=1.5, cap_blocks=9)
    text = " ".join((*explain(scheme).resident, *explain(scheme).moves))
    assert "192 slots" in text
    assert "at most 9 of the missing blocks" in text
    assert "KV of the draft model, as much as one layer's" in text
    own = explain(with_options(scheme, draft_kv_bytes_per_token=6_000))
    assert "KV of the draft model, 6,000 bytes per token" in own.resident
    none = explain(with_options(scheme, draft_kv_bytes_per_token=0))
    assert not any("draft model" in line for line in none.resident)


def test_dense_moves_nothing() -> None:
    """All KV stays in HBM, one stream is drawn."""
    found = explain(load_scheme("dense"))
    assert found.moves == ("nothing is selected and nothing moves",)
    assert len(found.picture) == 2


def test_presets_differ() -> None:
    """Schemes that do different things are told apart by their words."""
    words = [
        (found.resident, found.moves, found.waits)
        for found in (explain(load_scheme(name)) for name in scheme_names())
    ]
    assert len(set(words)) == len(words)


def test_every_word_of_a_scheme_is_explained() -> None:
    """Each choice of predictor, transport, eviction and offloading has its sentence."""
    tables = {"predictor": WHO, "transport": TRANSPORTS, "evict": EVICTED, "offload_at": LEAVES}
    for part, sentences in tables.items():
        assert set(WORDS[part]) <= set(sentences)
