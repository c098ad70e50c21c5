"""The n-gram drafter against a plain search."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="recording needs the extra 'record'")

from oasis_sim.record.drafters import ngram_draft, ngram_drafts


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([5], 5),
        ([5, 6], 6),
        ([1, 2, 1], 2),
        ([1, 2, 3, 9, 1, 2, 3], 9),
        ([1, 2, 3, 9, 7, 2, 3, 8, 1, 2, 3], 9),
        ([2, 3, 9, 2, 3, 8, 5, 2, 3], 8),
    ],
)
def test_longest_then_latest_match_wins(history, expected):
    """Three tokens beat two, a later match beats an earlier one, none repeats the token."""
    assert expected == ngram_draft(history)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_draft_follows_an_earlier_ending(history):
    """The draft is what a search over all places and lengths finds."""
    found = [
        (length, start)
        for length in (1, 2, 3)
        for start in range(len(history) - length)
        if length < len(history) and history[start : start + length] == history[-length:]
    ]
    expected = history[max(found)[1] + max(found)[0]] if found else history[-1]
    assert expected == ngram_draft(history)


def test_drafts_see_only_what_was_processed():
    """Step s knows the tokens up to its own."""
    tokens = [1, 2, 3, 1, 2, 4, 1]
    assert [ngram_draft(tokens[:4]), ngram_draft(tokens[:5])] == ngram_drafts(tokens, 3, 2)
