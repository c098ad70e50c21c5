"""Field checks: every mistake of a file at once, each at its line."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given

from oasis_sim.errors import InputError
from oasis_sim.fileio import Document, Fields, did_you_mean, is_number, loads_yaml
from oasis_sim.units import parse_bandwidth, parse_bytes, parse_flops, parse_time
from tests.strategies import ABOVE_FLOAT, NOT_FINITE, bad_counts, hostile_names, json_values


def fields_of(text: str) -> Fields:
    """Return the fields of YAML text."""
    return Fields.of(loads_yaml(text, "f.yaml"))


def mistake_of(value: Any, method: str, **arguments: Any) -> str:
    """Read one value by one getter and return what is said about it."""
    fields = Fields.of(Document({"key": value}, "f.yaml"))
    getattr(fields, method)("key", **arguments)
    with pytest.raises(InputError) as caught:
        fields.finish()
    return str(caught.value)


def test_good_values() -> None:
    """Each getter returns what was written."""
    fields = fields_of(
        "name: x\nflag: true\ncount: 1e9\nratio: 0.5\nsize: 4 KiB\nsizes: [1 B, 2 B]\n"
        "numbers: [1, 2.5]\nwords: [a, b]\nchild: {inner: 3}\nrows: [{a: 1}, {a: 2}]\n"
        "empty:\nnames: {x: 1, y: 2}\n"
    )
    assert "x" == fields.text("name")
    assert fields.flag("flag") is True
    assert 10**9 == fields.integer("count")
    assert 0.5 == fields.number("ratio")
    assert 4096 == fields.quantity("size", parse_bytes)
    assert (1, 2) == fields.quantities("sizes", parse_bytes, count=2)
    assert (1.0, 2.5) == fields.numbers("numbers")
    assert ("a", "b") == fields.texts("words")
    assert 3 == fields.child("child").integer("inner")
    assert [1, 2] == [row.integer("a") for row in fields.children("rows")]
    assert ("x", "y") == fields.child("names").keys()
    assert not fields.has("empty")
    assert not fields.has("absent")
    assert 7 == fields.integer("absent", 7)
    assert "d" == fields.text("absent", "d")
    assert fields.clean
    fields.finish()


def test_all_mistakes_at_once() -> None:
    """One error lists every mistake with line and path, unknown keys with a guess."""
    fields = fields_of("nam: x\nhbm:\n  size: 80 Gb\n  ratio: .nan\nrows:\n  - {a: '1'}\n  - 5\n")
    fields.text("name")
    hbm = fields.child("hbm")
    hbm.quantity("size", parse_bytes)
    hbm.number("ratio")
    for row in fields.children("rows"):
        row.integer("a")
    with pytest.raises(InputError) as caught:
        fields.finish()
    message = str(caught.value)
    assert message.startswith("f.yaml: 6 mistakes:")
    for said in (
        "f.yaml:3: hbm.size: 'Gb' is not a unit",
        "f.yaml:4: hbm.ratio: nan is out of range",
        "f.yaml:6: rows[0].a: is the text '1'; write a whole number",
        "f.yaml:7: rows[1]: is the number 5",
        "name: is missing; add text",
        "f.yaml:1: nam: is not a known key; remove it; did you mean 'name'?",
    ):
        assert said in message


@given(bad_counts())
def test_bad_counts_are_refused(value: Any) -> None:
    """No wrong kind or range of value passes for a count."""
    assert "key" in mistake_of(value, "integer", low=1)


@pytest.mark.parametrize(
    "value", [ABOVE_FLOAT, -ABOVE_FLOAT, True, None, "1", [], *NOT_FINITE], ids=str
)
def test_what_is_no_number(value: Any) -> None:
    """Nothing passes for a number whose float() would fail or be no number."""
    assert not is_number(value)
    assert not is_number(value, 0, float("inf"))


def test_numbers_up_to_their_bounds() -> None:
    """Bounds belong to the range; the largest float is still a number."""
    assert all(map(is_number, [0, -1, 2.5, 10**300, sys.float_info.max]))
    assert is_number(1, 1, 1)
    assert not is_number(2, 0, 1)


def test_an_integer_that_no_float_can_hold_is_out_of_range() -> None:
    """It is refused as any other number outside its range, with its field."""
    assert "f.yaml: key: 999" in mistake_of(ABOVE_FLOAT, "number")
    assert "is out of range" in mistake_of([ABOVE_FLOAT], "numbers")


@given(json_values())
def test_any_value_is_returned_or_refused(value: Any) -> None:
    """Whatever stands in a field, each getter gives its type or notes a mistake."""
    parsers = (parse_bytes, parse_bandwidth, parse_time, parse_flops)
    calls: list[tuple[str, tuple[Any, ...], type | tuple[type, ...]]] = [
        ("text", (), str),
        ("flag", (), bool),
        ("integer", (), int),
        ("number", (), float),
        ("numbers", (), tuple),
        ("texts", (), tuple),
        ("children", (), tuple),
        ("child", (), Fields),
        *(("quantity", (parser,), (int, float)) for parser in parsers),
    ]
    for method, arguments, kind in calls:
        fields = Fields.of(Document({"key": value}, "f.yaml"))
        got = getattr(fields, method)("key", *arguments)
        assert isinstance(got, kind)
        if method == "number" and fields.clean:
            assert 0 <= got <= 2**53
        try:
            fields.finish()
        except InputError as error:
            assert "f.yaml" in str(error)


@pytest.mark.parametrize("value", [None, True, 3, "80 Gb", "80", "-1 GB", "nan GB", [], {}])
def test_bad_quantities_are_refused(value: Any) -> None:
    """A quantity needs a number and a known unit."""
    assert "key" in mistake_of(value, "quantity", parse=parse_bytes)


@pytest.mark.parametrize(
    ("document", "said"),
    [(None, "is empty"), ([1], "holds a list"), (5, "the number 5"), ("x", "the text 'x'")],
)
def test_top_must_be_a_mapping(document: Any, said: str) -> None:
    """A file that is no mapping is refused at once."""
    with pytest.raises(InputError, match=said):
        Fields.of(Document(document, "f.yaml"))


def test_choices() -> None:
    """An unknown word is answered with the known ones and the nearest."""
    said = mistake_of("drft", "text", choices=("draft", "oracle"))
    assert "use one of draft, oracle; did you mean 'draft'?" in said


def test_huge_numbers_are_shown_short() -> None:
    """A number of hundreds of digits does not fill the screen."""
    assert len(mistake_of(1e300, "integer")) < 120
    assert len(mistake_of(10**300, "text")) < 120


def test_list_of_wrong_length() -> None:
    """A list that must have so many entries says so."""
    assert "has 3 entries; give 2" in mistake_of([1, 2, 3], "numbers", count=2)


def test_unknown_key_in_a_child() -> None:
    """Keys that nobody asked for are refused at every level."""
    fields = fields_of("child: {a: 1, b: 2}")
    fields.child("child").integer("a")
    with pytest.raises(InputError, match=r"child\.b: is not a known key"):
        fields.finish()


@given(hostile_names())
def test_hostile_keys_are_shown_harmless(name: str) -> None:
    """No key of a file brings control characters into a message."""
    fields = Fields.of(Document({name: 1}, "f.yaml"))
    with pytest.raises(InputError) as caught:
        fields.finish()
    assert str(caught.value).isprintable()


def test_did_you_mean_ignores_case() -> None:
    """Guesses are made without regard to case, and only near ones."""
    assert "; did you mean 'Qwen3-8B'?" == did_you_mean("qwen3-8", ["Qwen3-8B", "llama"])
    assert "" == did_you_mean("zzz", ["Qwen3-8B"])


@pytest.mark.parametrize(
    ("method", "default"), [("text", "x"), ("flag", True), ("integer", 1), ("number", 1.5)]
)
def test_an_empty_key_is_not_its_default(method: str, default: Any) -> None:
    """`key:` with nothing behind it is a mistake; a key that is left out has its default."""
    assert "key: is empty" in mistake_of(None, method, default=default)
    assert default == getattr(fields_of("other: 1"), method)("key", default)


@pytest.mark.parametrize(
    ("value", "said"),
    [("0 B/s", "'0 B/s' is out of range; use 1 kB/s to 1 GB/s"), ("2 GB/s", "use 1 kB/s to 1 GB")],
)
def test_quantities_have_bounds(value: str, said: str) -> None:
    """A quantity outside its bounds is refused, the bounds spelt as one would write them."""
    bounds = ("1 kB/s", "1 GB/s")
    shown = mistake_of(value, "quantity", parse=parse_bandwidth, within=bounds)
    assert said.replace("'", "") in shown.replace("'", "")
    good = fields_of("key: 1 kB/s").quantity("key", parse_bandwidth, within=bounds)
    assert 1000 == good
