"""From options to a scenario."""

from __future__ import annotations

from typing import Any

import pytest

from oasis_sim.cli.options import overridden_inputs, spec_from
from oasis_sim.cli.run import run
from oasis_sim.engine.spec import LoadSpec, ScenarioSpec
from oasis_sim.errors import UsageError


def options(**given: Any) -> dict[str, Any]:
    """Return the values of all options, with those given changed."""
    nothing: dict[str, Any] = {
        param.name: () if param.multiple else None
        for param in run.params
        if param.name is not None and hasattr(param, "multiple")
    }
    unknown = given.keys() - nothing.keys()
    assert not unknown
    return nothing | given


def test_no_option_gives_the_default_scenario() -> None:
    """The README's first run needs no option."""
    assert spec_from(options()) == ScenarioSpec()


def test_scheme_parts_change_the_scheme() -> None:
    """Each option ends in its part of the scheme."""
    scheme = spec_from(
        options(cap_blocks=3, budget=1024, pool=1.5, block_size=32, predictor="previous")
    ).scheme
    assert (scheme.admission_cap, scheme.budget_tokens, scheme.pool_factor) == (3, 1024, 1.5)
    assert (scheme.block_tokens, scheme.predictor, scheme.draft_row) == (32, "previous", False)


def test_the_name_of_a_drafter_is_a_predictor() -> None:
    """A trace may hold several drafters; naming one picks it."""
    spec = spec_from(options(predictor="ngram"))
    assert (spec.scheme.predictor, spec.drafter) == ("draft", "ngram")


def test_requests_follow_the_concurrency() -> None:
    """A closed loop runs twice as many requests as fit at once, unless told otherwise."""
    assert spec_from(options(concurrency=8)).load.requests == 16
    assert spec_from(options(concurrency=8, requests=3)).load.requests == 3


def test_a_rate_makes_arrivals_without_a_limit() -> None:
    """Open arrivals are not throttled by a closed loop's concurrency."""
    spec = spec_from(options(rate=0.7, requests=192, context=24_576))
    assert spec.load == LoadSpec("poisson", 192, 24_576, 2_048, 0.7)
    assert spec.concurrency is None


def test_a_request_file_brings_its_own_sizes() -> None:
    """All rows of the file run, at their own lengths."""
    spec = spec_from(options(workload="day.jsonl", workload_format="mooncake"))
    assert spec.load == LoadSpec("file", None, None, None, file="day.jsonl", format="mooncake")
    assert spec.concurrency is None


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"workload": "a.jsonl"}, "--workload-format"),
        ({"workload_format": "csv"}, "--workload FILE"),
        ({"workload": "a", "workload_format": "csv", "rate": 1.0}, "contradict"),
        ({"workload": "a", "workload_format": "csv", "context": 5}, "--context"),
        ({"workload": "a", "workload_format": "csv", "output_tokens": 5}, "--output-tokens"),
        ({"fetch_ratio": 0.1, "cap_blocks": 3}, "not both"),
        ({"scheme": "dense", "fetch_ratio": 0.1}, "dense"),
        ({"budget": 100}, "multiple"),
        ({"evict": "random"}, "least_recently_selected"),
        ({"cap_over": "request"}, "head, layer, model"),
        ({"admit": "gainful"}, "least_attended"),
    ],
)
def test_options_that_contradict_each_other_are_refused(given: dict[str, Any], hint: str) -> None:
    """The message names what to change."""
    with pytest.raises(UsageError, match=hint):
        spec_from(options(**given))


def test_options_override_a_config() -> None:
    """A config file is the starting point, options win."""
    base = ScenarioSpec(
        profile="h200", load=LoadSpec("poisson", 10, 100, 10, 2.0), concurrency=None, seed=4
    )
    spec = spec_from(options(seed=5, requests=20), base)
    assert spec == ScenarioSpec(
        profile="h200", load=LoadSpec("poisson", 20, 100, 10, 2.0), concurrency=None, seed=5
    )
    assert spec_from(options(), base) == base


def test_host_memory_is_given_with_its_unit() -> None:
    """The option's value reaches the scenario as bytes."""
    assert spec_from(options(host_bytes=400 * 2**30)).host_bytes == 400 * 2**30
    context = run.make_context("run", ["--host-memory", "400 GiB"])
    assert context.params["host_bytes"] == 400 * 2**30


def test_a_config_keeps_its_requests_when_the_concurrency_changes() -> None:
    """Only the default number of requests follows the concurrency."""
    base = ScenarioSpec(load=LoadSpec(requests=7))
    assert spec_from(options(concurrency=3), base).load.requests == 7


def test_replaced_inputs_need_not_match_a_config() -> None:
    """Fingerprints are checked for what still comes from the file."""
    assert overridden_inputs(options()) == set()
    given = options(trace=("x",), model="y", requests=3)
    assert overridden_inputs(given) == {"trace", "model", "workload"}
