"""Schemes: presets as published, resolved sizes, and parts that contradict each other."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oasis_sim.errors import InputError, UsageError
from oasis_sim.fileio import find_input, loads_yaml
from oasis_sim.scheme import Scheme, load_scheme, scheme_names, with_options
from oasis_sim.scheme.load import read_scheme
from tests.strategies import bad_counts, file_contents, schemes

OASIS = load_scheme("oasis")


def test_presets() -> None:
    """Every preset is there, under its own name and with a description."""
    systems = ("dense", "freekv", "hisparse", "infinigen", "quest", "shadowkv")
    kinds = ("adaptive", "fp8", "pool", "shared", "speculative")
    variants = ("oasis", *(f"oasis-{kind}" for kind in kinds))
    assert sorted(scheme_names()) == sorted(
        (*systems, *variants, "belady", "on-demand", "oracle", "previous-token")
    )
    for name in scheme_names():
        scheme = load_scheme(name)
        assert name == scheme.name
        assert scheme.title
        assert scheme.description


def test_oasis_is_as_published() -> None:
    """128 chosen blocks and the local one are attended, per head and layer; no sink."""
    assert (128, 128, 128) == (OASIS.budget_blocks, OASIS.chosen_blocks, OASIS.pool_blocks)
    assert (0, 1, 2064) == (OASIS.sink_blocks, OASIS.recent_blocks, OASIS.attended_tokens_max)


@pytest.mark.parametrize(
    ("ratio", "cap"), [(0.01, 1), (0.02, 2), (0.05, 6), (0.1, 12), (0.2, 25), (1.0, 128)]
)
def test_caps_of_table_2(ratio: float, cap: int) -> None:
    """C = floor(ratio x 128)."""
    assert cap == with_options(OASIS, fetch_ratio=ratio).admission_cap


def test_cap_uses_the_decimal_that_was_written() -> None:
    """0.29 of 100 blocks are 29, although the binary number nearest to 0.29 is smaller."""
    scheme = with_options(OASIS, budget_tokens=1600, fetch_ratio=0.29)
    assert 29 == scheme.admission_cap


def test_trace_statistics_budget() -> None:
    """With one sink and two recent blocks in the budget, K/b - 3 remain to choose."""
    scheme = with_options(
        OASIS, sink_blocks=1, recent_blocks=2, recent_in_budget=True, budget_tokens=512
    )
    assert (29, 29, 512) == (
        scheme.chosen_blocks,
        scheme.pool_blocks,
        scheme.attended_tokens_max,
    )


@given(schemes())
def test_resolved_sizes(scheme: Scheme) -> None:
    """1 <= k <= P, C <= k, and the cap is the floor of the ratio's share."""
    assert 1 <= scheme.chosen_blocks <= scheme.pool_blocks
    assert 0 <= scheme.admission_cap <= scheme.chosen_blocks
    extra = scheme.pool_blocks - scheme.chosen_blocks
    assert extra <= (scheme.pool_factor - 1) * scheme.budget_blocks + 1e-6
    if scheme.fetch_ratio is not None:
        share = Fraction(repr(scheme.fetch_ratio)) * scheme.budget_blocks
        assert min(scheme.chosen_blocks, int(share)) == scheme.admission_cap


@given(schemes())
def test_file_round_trip(scheme: Scheme) -> None:
    """A scheme written as a file is read back as it was."""
    text = yaml.safe_dump(scheme.to_config(), allow_unicode=True)
    assert scheme == read_scheme(loads_yaml(text, "f"))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"predictor": "nobody"}, "predictor"),
        ({"lookahead": "two_steps"}, "lookahead"),
        ({"unit": "page"}, "unit"),
        ({"evict": "random"}, "evict"),
        ({"transport": "pigeon"}, "transport"),
        ({"block_tokens": 0}, "block_tokens"),
        ({"budget_tokens": 0}, "budget_tokens"),
        ({"budget_tokens": 100}, "budget_tokens"),
        ({"budget_tokens": 16, "recent_in_budget": True}, "budget_tokens"),
        ({"pool_factor": 0.9}, "pool_factor"),
        ({"pool_factor": float("nan")}, "pool_factor"),
        ({"sink_blocks": -1}, "sink_blocks"),
        ({"recent_blocks": 0}, "recent_blocks"),
        ({"fetch_ratio": 1.1}, "fetch_ratio"),
        ({"fetch_ratio": -0.1}, "fetch_ratio"),
        ({"fetch_ratio": float("nan")}, "fetch_ratio"),
        ({"cap_blocks": -1, "fetch_ratio": None}, "cap_blocks"),
        ({"cap_blocks": 3}, "cap_blocks"),
        ({"unit": "token"}, "unit"),
        ({"block_tokens": 1}, "unit"),
        ({"draft_row": False}, "draft_row"),
        ({"predictor": "previous"}, "draft_row"),
        ({"predictor": "current", "draft_row": False}, "lookahead"),
        ({"lookahead": "none"}, "lookahead"),
        ({"compressed_keys": False}, "compressed_keys"),
        ({"offload": False}, "fetch_ratio"),
        ({"offload": False}, "draft_row"),
        ({"draft_kv_bytes_per_token": -1}, "draft_kv_bytes_per_token"),
        ({"adaptive_cap": True}, "adaptive_cap"),
        ({"cap_over": "layer", "fetch_ratio": None}, "cap_over"),
        ({"cap_over": "model", "fetch_ratio": None}, "cap_over"),
        ({"cap_over": "request"}, "cap_over"),
        ({"admit": "gainful"}, "admit"),
        ({"evict": "least_attended", "reuse": False, "fetch_ratio": None}, "evict"),
        ({"speculative": True, "predictor": "previous", "draft_row": False}, "speculative"),
        ({"reuse": False}, "reuse"),
        ({"correction_share": 1.5}, "correction_share"),
        ({"lookahead": "one_layer"}, "lookahead"),
        ({"offload_at": "never"}, "offload_at"),
        ({"host_bytes_per_element": 9}, "host_bytes_per_element"),
    ],
)
def test_contradictions(changes: dict[str, Any], part: str) -> None:
    """Each part out of range, or at odds with another, is refused by name."""
    with pytest.raises(InputError, match=part):
        dataclasses.replace(OASIS, **changes)


@pytest.mark.parametrize(
    ("name", "changes", "part"),
    [
        ("quest", {"key_rank": 8}, "key_rank"),
        ("quest", {"reuse": False}, "reuse"),
        ("quest", {"offload_at": "layer"}, "offload_at"),
        ("quest", {"adaptive_cap": True}, "adaptive_cap"),
        ("quest", {"cap_over": "layer"}, "cap_over"),
        ("quest", {"admit": "gainful"}, "admit"),
        ("on-demand", {"evict": "least_attended"}, "evict"),
        ("quest", {"host_bytes_per_element": 1}, "host_bytes_per_element"),
        ("shadowkv", {"adaptive_cap": True}, "adaptive_cap"),
        ("shadowkv", {"correction_share": 0.1}, "correction_share"),
        ("infinigen", {"fetch_ratio": 0.1}, "reuse"),
        ("oasis-adaptive", {"cap_blocks": 3}, "adaptive_cap"),
    ],
)
def test_contradictions_of_other_systems(name: str, changes: dict[str, Any], part: str) -> None:
    """A part that its system cannot have is refused by name."""
    with pytest.raises(InputError, match=part):
        dataclasses.replace(load_scheme(name), **changes)


def test_what_selects_and_how_large_its_index_is() -> None:
    """All but dense attend a selection; the index is min and max of each block, or as stated."""
    assert [name for name in scheme_names() if not load_scheme(name).selects] == ["dense"]
    shares = {name: load_scheme(name).index_share for name in ("oasis", "freekv", "infinigen")}
    assert shares == {"oasis": 2 / 16, "freekv": 2 / 32, "infinigen": 0.2}


def test_cap_and_ratio_replace_each_other() -> None:
    """An option for one takes the place of the preset's other; both at once are refused."""
    capped = with_options(OASIS, cap_blocks=3)
    assert (None, 3, 3) == (capped.fetch_ratio, capped.cap_blocks, capped.admission_cap)
    assert 6 == with_options(capped, fetch_ratio=0.05).admission_cap
    with pytest.raises(UsageError, match="not both"):
        with_options(OASIS, cap_blocks=3, fetch_ratio=0.1)


def test_options_that_are_not_given() -> None:
    """None means not given; a scheme without changes is the same."""
    assert OASIS == with_options(OASIS, fetch_ratio=None, cap_blocks=None, budget_tokens=None)


def test_a_block_of_one_token_is_a_token() -> None:
    """The size of a block says the unit, back and forth."""
    tokens = with_options(load_scheme("hisparse"), block_tokens=1)
    assert ("token", 2048, 4096) == (tokens.unit, tokens.chosen_blocks, tokens.pool_blocks)
    assert load_scheme("hisparse") == with_options(tokens, block_tokens=16)


@pytest.mark.parametrize("predictor", ["draft", "previous", "current", "oracle"])
@pytest.mark.parametrize("name", ["oasis", "on-demand", "previous-token", "oracle"])
def test_predictor_brings_what_it_needs(name: str, predictor: str) -> None:
    """Another predictor brings its draft row and its time of fetching along."""
    scheme = with_options(load_scheme(name), predictor=predictor)
    assert (predictor == "draft", predictor == "current") == (scheme.draft_row, scheme.on_demand)


@pytest.mark.parametrize(
    "options",
    [
        {"fetch_ratio": 2.0},
        {"budget_tokens": 100},
        {"offload": False},
        {"nonsense": 1},
    ],
)
def test_bad_options_are_usage_errors(options: dict[str, Any]) -> None:
    """Options that contradict the scheme are the user's usage, exit code 2."""
    with pytest.raises(UsageError):
        with_options(OASIS, **options)


def test_dense_takes_no_cap() -> None:
    """A fetch ratio for a scheme that fetches nothing is refused, not ignored."""
    with pytest.raises(UsageError, match="needs offload"):
        with_options(load_scheme("dense"), fetch_ratio=0.05)


@pytest.mark.parametrize(
    ("scheme", "options", "said"),
    [
        ("dense", {"budget_tokens": 512}, "budget_tokens: has no effect: all KV is attended"),
        ("dense", {"evict": "least_recently_selected"}, "evict: has no effect"),
        ("dense", {"predictor": "current"}, "predictor: has no effect"),
        ("quest", {"evict": "least_recently_selected"}, "evict: has no effect"),
        ("quest", {"cap_blocks": 4}, "cap_blocks: needs offload"),
        ("dense", {"pool_factor": 2.0}, "pool_factor: needs offload"),
    ],
)
def test_what_a_scheme_does_not_use_is_refused(
    scheme: str, options: dict[str, Any], said: str
) -> None:
    """An option without effect is a mistake of whoever gave it, whatever its value."""
    with pytest.raises(UsageError, match=said):
        with_options(load_scheme(scheme), **options)


def test_what_a_scheme_uses_is_taken() -> None:
    """Blocks also measure what dense holds; a scheme that selects has a budget and a predictor."""
    assert 32 == with_options(load_scheme("dense"), block_tokens=32).block_tokens
    quest = with_options(load_scheme("quest"), budget_tokens=512, predictor="current")
    assert 512 == quest.budget_tokens


def test_file_mistakes_come_together(tmp_path: Path) -> None:
    """All mistakes of a scheme file are told at once, with their lines."""
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\npredictor: oracel\nbudget: 2048\nfetch_ratio: '0.05'\n")
    with pytest.raises(InputError) as caught:
        load_scheme(path)
    for said in (":2: predictor: 'oracel' is not known", ":3: budget: is not a", ":4: fetch_ratio"):
        assert said in str(caught.value)


def test_a_part_without_a_value_is_refused(tmp_path: Path) -> None:
    """`budget_tokens:` with nothing behind it is not the default in silence."""
    file = tmp_path / "s.yaml"
    file.write_text("name: mine\nbudget_tokens:\n")
    with pytest.raises(InputError, match=r"s\.yaml:2: budget_tokens: is empty"):
        load_scheme(file)


def test_file_contradictions_have_lines(tmp_path: Path) -> None:
    """A contradiction is told at the line of the part that causes it."""
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\npredictor: draft\ndraft_row: false\n")
    with pytest.raises(InputError, match=r"mine\.yaml:3: draft_row: must be true"):
        load_scheme(path)


INTEGERS = ("block_tokens", "budget_tokens", "recent_blocks")


@pytest.mark.parametrize("key", INTEGERS)
@given(value=bad_counts().filter(lambda value: value is not None))
def test_bad_numbers_in_files(key: str, value: Any) -> None:
    """No wrong kind of value passes for a number of a scheme file."""
    text = yaml.safe_dump({**OASIS.to_config(), key: value})
    with pytest.raises(InputError, match=key):
        read_scheme(loads_yaml(text, "f"))


@given(content=file_contents(find_input("oasis", "scheme").read_bytes()))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_fuzz(tmp_path: Path, content: bytes) -> None:
    """Any scheme file is a scheme or an InputError that names the file."""
    path = tmp_path / "scheme.yaml"
    path.write_bytes(content)
    try:
        assert load_scheme(path).chosen_blocks >= 1
    except InputError as error:
        assert str(path) in str(error)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "predictor": st.sampled_from(["draft", "previous", "current", "oracle"]),
            "fetch_ratio": st.floats(0, 1),
            "budget_tokens": st.integers(1, 300).map(lambda blocks: 16 * blocks),
            "pool_factor": st.floats(1, 3),
            "block_tokens": st.sampled_from([8, 16, 32]),
        },
    )
)
def test_options_give_a_scheme_or_a_usage_error(options: dict[str, Any]) -> None:
    """Any mix of options gives a checked scheme or a UsageError."""
    try:
        scheme = with_options(OASIS, **options)
    except UsageError:
        return
    assert options == {key: getattr(scheme, key) for key in options}


def test_a_ratio_that_rounds_down_to_no_block_is_told() -> None:
    """0.05 of 16 blocks is less than one; of 32 it is one, and 0 was meant as 0."""
    base = load_scheme("oasis")
    (text,) = with_options(base, budget_tokens=256).cautions
    assert "0.05 x 16 blocks rounds down to 0" in text
    assert with_options(base, budget_tokens=512).cautions == ()
    assert with_options(base, budget_tokens=256, fetch_ratio=0.0).cautions == ()
