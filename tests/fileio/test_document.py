"""Strict YAML and JSON: the values that were meant, or a line to look at."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from oasis_sim.errors import InputError
from oasis_sim.fileio import Document, dump_yaml, load_json, load_yaml, loads_json, loads_yaml
from tests.strategies import file_contents, json_values

SAMPLE = b"""\
name: h100   # a comment
hbm:
  capacity: 80 GiB
  bandwidth: {peak: 3.35 TB/s, efficiency: 0.9}
curve:
  - [4 KiB, 1.3]
  - [8 KiB, 2.6]
text: >
  folded
  text
"""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e9", 1e9),
        ("3.35e12", 3.35e12),
        ("1.", 1.0),
        (".5", 0.5),
        ("-7", -7),
        ("010", 10),
        ("no", "no"),
        ("on", "on"),
        ("Yes", "Yes"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("null", None),
        ("'12'", "12"),
        ('"1e9"', "1e9"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("80 GiB", "80 GiB"),
        ("=", "="),
        (".inf", math.inf),
        ("-.inf", -math.inf),
    ],
)
def test_yaml_scalars(text: str, value: object) -> None:
    """Scalars mean what YAML 1.2 says, not what PyYAML guesses."""
    read = loads_yaml(f"key: {text}", "f").value["key"]
    assert value == read
    assert type(value) is type(read)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: &x 1\nb: 2", 1, "anchor"),
        ("b: 2\na: *x", 2, "alias"),
        ("a: !!python/object/apply:os.system [ls]", 1, "tag"),
        ("a: !!int '3'", 1, "tag"),
        ("a: 1\nb: 2\na: 3", 3, "'a' stands twice"),
        ("x: {a: 1, a: 2}", 1, "'a' stands twice"),
        ("a: 1\n---\nb: 2", 2, "second document"),
        ("a: [1,\n", 2, "not valid YAML"),
        ("a: 1\n\tb: 2", 2, "not valid YAML"),
        ("a: b: c", 1, "not valid YAML"),
        ("? [1]\n: 2", 1, "key is not plain text"),
        ("\n" + "[" * 100, 2, "nested too deeply"),
        ("a: " + "9" * 500, 1, "too large"),
        ("a: \x00", 1, "special characters"),
        ("# \x85\na: 1\r\nb: \x07\n", 3, "special characters"),
    ],
)
def test_yaml_refuses(text: str, line: int | None, said: str) -> None:
    """What YAML allows but nobody should write is refused at its line."""
    with pytest.raises(InputError, match=said) as caught:
        loads_yaml(text, "f.yaml")
    assert line == caught.value.line
    assert "f.yaml" == caught.value.file


def test_yaml_alias_bomb_is_refused() -> None:
    """A billion laughs are refused at the first anchor."""
    levels = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
    with pytest.raises(InputError, match="anchor"):
        loads_yaml(f"a0: &a0 [x]\n{levels}", "f")


def test_yaml_remembers_lines() -> None:
    """Every key and list entry knows its line."""
    lines = loads_yaml(SAMPLE.decode(), "f").lines
    assert [1, 2, 3, 4, 4, 5, 6, 7, 7] == [
        lines[path]
        for path in (
            ("name",),
            ("hbm",),
            ("hbm", "capacity"),
            ("hbm", "bandwidth"),
            ("hbm", "bandwidth", "efficiency"),
            ("curve",),
            ("curve", 0),
            ("curve", 1),
            ("curve", 1, 0),
        )
    ]


@given(json_values().filter(lambda value: not has_special_float(value)))
def test_yaml_survives(value: Any) -> None:
    """What is written is read back as it was, texts that look like numbers too."""
    assert {"value": value} == loads_yaml(dump_yaml({"value": value}), "f").value


@pytest.mark.parametrize("text", ["1e9", "08", "0x10", "no", "~", "", ".inf", "a: b", "# x", " x "])
def test_yaml_texts_survive(text: str) -> None:
    """Texts that YAML might take for something else stay texts; repeated ones get no anchor."""
    value = {text or "key": [text, text], "again": [text, text]}
    assert value == loads_yaml(dump_yaml(value), "f").value


def has_special_float(value: Any) -> bool:
    """Say whether NaN is inside, which equals nothing."""
    return "NaN" in json.dumps(value) or "Infinity" in json.dumps(value)


@pytest.mark.parametrize(
    ("text", "field", "said"),
    [
        ('{"a": NaN}', "a", "NaN is not a number"),
        ('{"a": {"b": [1, -Infinity]}}', "a.b[1]", "-Infinity is not a number"),
        ("NaN", None, "NaN is not a number"),
        ('{"a": 1, "a": 2}', None, "'a' stands twice"),
        ('{"a": 1', None, "not valid JSON"),
        ('{"a": 1} x', None, "not valid JSON"),
        ("", None, "not valid JSON"),
        ("[" * 100_000, None, "nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", None, "5000 digits"),
    ],
)
def test_json_refuses(text: str, field: str | None, said: str) -> None:
    """JSON that is broken, or means something else to other readers, is refused."""
    with pytest.raises(InputError, match=said) as caught:
        loads_json(text, "f.json", 7)
    assert (7, field) == (caught.value.line, caught.value.field)


@given(json_values().filter(lambda value: not has_special_float(value)))
def test_json_survives(value: Any) -> None:
    """Any JSON value is read back as it was."""
    assert value == loads_json(json.dumps(value), "f").value


@pytest.mark.parametrize("load", [load_yaml, load_json])
@given(content=file_contents(SAMPLE) | json_values().map(lambda v: json.dumps(v).encode()))
def test_fuzz(
    tmp_path_factory: pytest.TempPathFactory,
    load: Callable[[Path], Document],
    content: bytes,
) -> None:
    """Any file is a document or an InputError that names it."""
    path = tmp_path_factory.mktemp("fuzz") / "file"
    path.write_bytes(content)
    try:
        load(path)
    except InputError as error:
        assert str(path) in str(error)


@pytest.mark.parametrize("load", [load_yaml, load_json])
def test_files_with_marks_and_caps(tmp_path: Path, load: Callable[[Path], Document]) -> None:
    """A byte-order mark and CRLF are fine; binary, other encodings and huge files are not."""
    path = tmp_path / "file"
    path.write_bytes(b'\xef\xbb\xbf{"a":\r\n 1}\r\n')
    assert {"a": 1} == load(path).value
    for content, said in (
        (b"\0\1", "binary"),
        (b'{"a": "\xe9"}', "not UTF-8"),
        (b" " * 3_000_000, "larger than"),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=said):
            load(path)
