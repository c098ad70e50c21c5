"""The error of quality proxies: as measured, and beside them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from oasis_sim.metrics.proxy import proxy_error
from oasis_sim.metrics.summary import summarise
from tests.factories import tiny_result

VALIDATION = Path(__file__).parents[2] / "validation"


def test_error_is_the_largest_of_the_raw_results() -> None:
    """The shipped numbers are those of the files that they name, no better and no worse."""
    results = [json.loads(path.read_text()) for path in VALIDATION.glob("quality-proxy-*.json")]
    checks = [check for each in results for check in each["recordings"]]
    error = proxy_error()
    assert len(checks) == error["recordings"]
    for name, ours in (("topk_agreement", "overlap"), ("attention_mass", "attention_mass")):
        apart = [abs(row["open"][ours] - row["closed"][ours]) for c in checks for row in c["rows"]]
        assert error[name] == pytest.approx(max(apart))
    ranks = [check["spearman_open_lost_mass_kl"] for check in checks]
    found = error["lost_mass_rank_with_kl"]
    assert (min(ranks), max(ranks)) == (found["low"], found["high"])


def test_a_summary_shows_the_error_where_there_are_proxies() -> None:
    """A run that measured none has nothing to be wrong about."""
    result = tiny_result()
    assert proxy_error() == summarise(result)["quality"]["proxy_error"]
    none = replace(result, quality=replace(result.quality, mass_mean=None))
    assert summarise(none)["quality"]["proxy_error"] is None
