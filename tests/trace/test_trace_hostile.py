"""Trace files that are broken, hostile or simply something else: one clear error each."""

from __future__ import annotations

import copy
import gzip
import io
import json
import math
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from oasis_sim.errors import InputError
from oasis_sim.trace import AttentionTrace, read_trace, save_trace
from oasis_sim.trace.build import flatten
from oasis_sim.trace.npz import load_npz
from tests.strategies import make_trace

TRACE = make_trace(11, steps=4, layers=2, heads=2, stored=6)
Arrays = dict[str, np.ndarray]


def write_npz(path: Path, arrays: Arrays, meta: object = None) -> Path:
    """Write arrays as numpy does, with a header given as text or object."""
    text = meta if isinstance(meta, str) else json.dumps(meta or TRACE.meta)
    np.savez_compressed(path, meta=np.array(text), **arrays)
    return path


def write_lines(path: Path, change: Callable[[list[str]], object]) -> Path:
    """Write the good trace as JSON lines after a change of its lines."""
    save_trace(TRACE, path)
    lines = path.read_text().splitlines()
    change(lines)
    path.write_text("\n".join(lines) + "\n")
    return path


def refused(path: Path, *words: str) -> InputError:
    """Read a file that must be refused; the message names the file and holds the words."""
    with pytest.raises(InputError) as caught:
        read_trace(path)
    for word in (path.name, *words):
        assert word in str(caught.value)
    return caught.value


def change_order(array: np.ndarray, place: tuple[int, ...], value: int) -> np.ndarray:
    """Return a copy with one entry changed."""
    changed = array.copy()
    changed[place] = value
    return changed


BAD_ARRAYS: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray], str]] = {
    "float order": ("use_order", lambda a: a.astype(float), "float64"),
    "nan position": ("position", lambda a: np.full(len(a), np.nan), "float64"),
    "boolean flags": ("accepted.ngram", lambda a: a.astype(bool), "bool"),
    "text tokens": ("token", lambda a: a.astype(str), "<U"),
    "negative order": ("use_order", lambda a: -a.astype(np.int64) - 1, "outside"),
    "flag 2": ("accepted.ngram", lambda a: a + 2, "0 and 1"),
    "token below -1": ("token", lambda a: a * 0 - 2, "token id"),
    "huge position": ("position", lambda a: a.astype(np.int64) + 2**40, "outside"),
    "position beyond 16-bit blocks": ("position", lambda a: a + 2**30, "65535 blocks"),
    "position backwards": ("position", lambda a: a[::-1].copy(), "increase"),
    "position negative": ("position", lambda a: a - 1000, "0 or more"),
    "short position": ("position", lambda a: a[:-1], "shape"),
    "tokens as many as steps": ("token", lambda a: a[:-1], "shape"),
    "flat order": ("use_order", lambda a: a.ravel(), "shape"),
    "fewer heads in one": ("pred_order.ngram", lambda a: a[:, :, :1], "shape"),
    "one layer less": ("use_order", lambda a: a[:, :1], "shape"),
    "duplicate block": (
        "use_order",
        lambda a: change_order(a, (2, 1, 0, 3), a[2, 1, 0, 0]),
        "step 2, layer 1, head 0: names a block twice",
    ),
    "block that is not there": (
        "pred_order.ngram",
        lambda a: change_order(a, (1, 0, 1, 2), 999),
        "step 1, layer 0, head 1: names a block that is not complete",
    ),
    "active block in use": (
        "use_order",
        lambda a: change_order(a, (0, 0, 0, 0), 15),  # position 60 of blocks of 4
        "step 0, layer 0, head 0: names a block that is not complete (15 are)",
    ),
    "active block predicted": (
        "pred_order.ngram",
        lambda a: change_order(a, (2, 0, 0, 0), 15),  # the next position is 63
        "step 2, layer 0, head 0: names a block that is not complete (15 are)",
    ),
    "hole": ("use_order", lambda a: change_order(a, (0, 0, 0, 0), 65535), "before a block"),
    "mass too narrow": ("mass", lambda a: a[..., :5], "covers 5 blocks"),
    "mass beyond the context": (
        "mass",
        lambda a: np.concatenate([a, a[..., :1] | 1], axis=-1),
        "beyond the context",
    ),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_arrays_that_break_the_schema(case: str, tmp_path: Path) -> None:
    """Each is refused with the array's name and what is wrong."""
    key, change, word = BAD_ARRAYS[case]
    arrays = flatten(TRACE)
    arrays[key] = change(arrays[key])
    refused(write_npz(tmp_path / "x.npz", arrays), key, word)


def without(key: str) -> Callable[[dict[str, Any]], object]:
    """Return a change that drops a header key."""
    return lambda meta: meta.pop(key)


def test_a_draft_may_name_the_block_that_its_token_completes(tmp_path: Path) -> None:
    """At position 63 the draft runs at 64: block 15 is complete then, and only then."""
    order = change_order(TRACE.pred_order["ngram"], (3, 0, 0, 0), 15)
    path = write_npz(tmp_path / "x.npz", flatten(TRACE) | {"pred_order.ngram": order})
    assert 15 == read_trace(path).pred_order["ngram"][3, 0, 0, 0]


BAD_HEADERS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "other format": (lambda m: m.update(format="x"), "format"),
    "version 2": (lambda m: m.update(version=2), "version 2 is not known"),
    "version as text": (lambda m: m.update(version="1"), "version"),
    "origin unknown": (lambda m: m.update(origin="guessed"), "origin"),
    "a number too large": (
        lambda m: m.update(text={"name": "x", "scores": [1.0, math.inf]}),
        "finite",
    ),
    "no name": (without("name"), "name"),
    "no model": (without("model"), "model"),
    "model is text": (lambda m: m.update(model="llama"), "model"),
    "zero blocks": (lambda m: m.update(block_tokens=0), "block_tokens"),
    "block size as text": (lambda m: m.update(block_tokens="16"), "block_tokens"),
    "block size true": (lambda m: m.update(block_tokens=True), "block_tokens"),
    "steps differ": (lambda m: m.update(steps=5), "shape"),
    "steps negative": (lambda m: m.update(steps=-4), "steps"),
    "steps huge": (lambda m: m.update(steps=2**60), "steps"),
    "stored differ": (lambda m: m.update(stored_blocks=5), "shape"),
    "layer twice": (lambda m: m.update(layer_ids=[1, 1]), "layer_ids"),
    "layer beyond": (lambda m: m.update(layer_ids=[0, 2]), "layer_ids"),
    "layers as text": (lambda m: m.update(layer_ids="01"), "layer_ids"),
    "layer true": (lambda m: m.update(layer_ids=[False, True]), "layer_ids"),
    "span short": (lambda m: m.update(layer_span=[None]), "layer_span"),
    "span negative": (lambda m: m.update(layer_span=[None, -4]), "layer_span"),
    "mass code unknown": (lambda m: m.update(mass_code="linear"), "mass_code"),
    "acceptance above 1": (
        lambda m: m.update(drafters={"ngram": {"accepted": 1.5}}),
        "drafters.ngram.accepted",
    ),
    "drafter name with slash": (lambda m: m.update(drafters={"a/b": {}}), "drafter"),
    "more heads than the model": (lambda m: m["model"].update(kv_heads=1), "KV heads"),
}


@pytest.mark.parametrize("suffix", [".npz", ".jsonl"])
@pytest.mark.parametrize("case", BAD_HEADERS)
def test_headers_that_break_the_schema(case: str, suffix: str, tmp_path: Path) -> None:
    """Each is refused in both formats with the header's field."""
    change, word = BAD_HEADERS[case]
    meta: dict[str, Any] = copy.deepcopy(dict(TRACE.meta))
    change(meta)
    if suffix == ".npz":
        path = write_npz(tmp_path / "x.npz", flatten(TRACE), meta)
    else:
        path = write_lines(tmp_path / "x.jsonl", lambda ls: ls.__setitem__(0, json.dumps(meta)))
        word = word.replace("shape", "header says")
    refused(path, word)


BAD_META_TEXT = {
    "no JSON": "oasis-trace",
    "list": "[1, 2]",
    "1e999": json.dumps({**TRACE.meta, "extra": {"x": 0.5}}).replace("0.5", "1e999"),
    "NaN": '{"format": "oasis-trace", "version": NaN}',
    "key twice": '{"format": "oasis-trace", "format": "x"}',
    "nested 100,000 deep": '{"format":' * 100_000,
    "empty": "",
    "a 10,000-digit number": '{"format": "oasis-trace", "version": ' + "9" * 10_000 + "}",
}


@pytest.mark.parametrize("case", BAD_META_TEXT)
def test_header_text_that_is_no_header(case: str, tmp_path: Path) -> None:
    """Broken JSON in ``meta`` and in the first line is refused alike."""
    text = BAD_META_TEXT[case]
    refused(write_npz(tmp_path / "x.npz", flatten(TRACE), text or " "))
    refused(write_lines(tmp_path / "x.jsonl", lambda lines: lines.__setitem__(0, text or "{}")))


def edit(line: int, old: str, new: str) -> Callable[[list[str]], object]:
    """Return a change that replaces text in one line; it must be there."""

    def change(lines: list[str]) -> None:
        assert old in lines[line]
        lines[line] = lines[line].replace(old, new, 1)

    return change


P2 = f'"position":{int(TRACE.position[1])}'
BAD_LINES: dict[str, tuple[Callable[[list[str]], object], int | None, str]] = {
    "position NaN": (edit(2, P2, '"position":NaN'), 3, "NaN"),
    "position infinite": (edit(2, P2, '"position":-Infinity'), 3, "Infinity"),
    "position float": (edit(2, P2, '"position":61.0'), 3, "position"),
    "position 1e9": (edit(2, P2, '"position":1e9'), 3, "position"),
    "position quoted": (edit(2, P2, '"position":"61"'), 3, "position"),
    "position true": (edit(2, P2, '"position":true'), 3, "position"),
    "position null": (edit(2, P2, '"position":null'), 3, "position"),
    "position list": (edit(2, P2, '"position":[61]'), 3, "position"),
    "position 2**70": (edit(2, P2, f'"position":{2**70}'), 3, "position"),
    "position missing": (edit(2, P2 + ",", ""), 3, "position"),
    "position of 9,999 digits": (edit(2, P2, '"position":' + "1" * 9_999), 3, "digits"),
    "key twice": (edit(2, P2, P2 + "," + P2), 3, "twice"),
    "token wrong": (edit(2, '"token":', '"token":1'), 3, "token"),
    "token missing": (edit(2, '"token":', '"x":'), 3, "token"),
    "order of floats": (edit(3, '"use_order":[[[', '"use_order":[[[0.5,'), 4, "use_order"),
    "order with null": (edit(3, '"use_order":[[[', '"use_order":[[[null,'), 4, "use_order"),
    "order with true": (edit(3, '"use_order":[[[', '"use_order":[[[true,'), 4, "true"),
    "order with text": (edit(3, '"use_order":[[[', '"use_order":[[["1",'), 4, "use_order"),
    "order too long": (edit(3, '"use_order":[[[', '"use_order":[[[1,2,'), 4, "stored_blocks"),
    "order not nested": (edit(3, '"use_order":[[[', '"use_order":[1,[['), 4, "use_order"),
    "order one level too deep": (edit(3, '"use_order":[[[', '"use_order":[[[[1],'), 4, "lists"),
    "order id negative": (edit(3, '"use_order":[[[', '"use_order":[[[-'), 4, "outside"),
    "order id 70000": (edit(3, '"use_order":[[[', '"use_order":[[[7000'), 4, "outside"),
    "mass 300": (edit(3, '"mass":[[[', '"mass":[[[300,'), 4, "mass"),
    "drafter lost": (edit(3, '"accepted.ngram"', '"accepted.other"'), 4, "ngram"),
    "no object": (lambda ls: ls.__setitem__(2, "[]"), 3, "object"),
    "cut line": (lambda ls: ls.__setitem__(4, ls[4][:40]), 5, "JSON"),
    "lines lost": (lambda ls: ls.pop(), 4, "3 steps"),
    "line repeated": (lambda ls: ls.append(ls[4]), 6, "more steps"),
    "deep nesting": (lambda ls: ls.__setitem__(2, "[" * 200_000), 3, "deep"),
    "blank flood": (lambda ls: ls.extend([""] * 2000), None, "blank"),
    "nothing but blanks": (lambda ls: ls.__setitem__(slice(None), ["", " "]), None, "empty"),
    "binary": (lambda ls: ls.__setitem__(2, "\0\1"), 3, "binary"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_lines_that_break_the_schema(case: str, tmp_path: Path) -> None:
    """Each is refused with the line, counted from 1, and the key."""
    change, line, word = BAD_LINES[case]
    error = refused(write_lines(tmp_path / "x.jsonl", change), word)
    if line is not None:
        assert line == error.line


def test_pickles_are_refused_without_running_them(tmp_path: Path) -> None:
    """An object array is an error; its pickle is never opened."""

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path(tmp_path / "ran").touch, ())

    arrays = flatten(TRACE) | {"token": np.array([Bomb()] * 5, dtype=object)}
    refused(write_npz(tmp_path / "x.npz", arrays), "token", "pickled")
    assert not (tmp_path / "ran").exists()


def test_a_size_that_lies_allocates_nothing(tmp_path: Path) -> None:
    """A header that claims 2**60 values is compared with the directory first."""
    member = io.BytesIO()
    header = {"descr": "<u2", "fortran_order": False, "shape": (2**30, 2**30)}
    np.lib.format.write_array_header_1_0(member, header)
    save_trace(TRACE, tmp_path / "good.npz")
    with (
        zipfile.ZipFile(tmp_path / "good.npz") as good,
        zipfile.ZipFile(tmp_path / "x.npz", "w") as bad,
    ):
        for name in good.namelist():
            data = member.getvalue() if name == "use_order.npy" else good.read(name)
            bad.writestr(name, data)
    refused(tmp_path / "x.npz", "use_order", "claims")


def test_data_beyond_the_shape_is_refused(tmp_path: Path) -> None:
    """An array that is followed by more bytes is not what its header says."""
    save_trace(TRACE, tmp_path / "good.npz")
    with (
        zipfile.ZipFile(tmp_path / "good.npz") as good,
        zipfile.ZipFile(tmp_path / "x.npz", "w") as bad,
    ):
        for name in good.namelist():
            bad.writestr(name, good.read(name) + b"\0" * (name == "token.npy"))
    refused(tmp_path / "x.npz", "token", "shape")


def test_an_archive_that_unpacks_too_large_is_refused(tmp_path: Path) -> None:
    """A few KB of zeros that would unpack to 64 MB stop at the cap, before unpacking."""
    arrays = flatten(TRACE) | {"mass": np.zeros((4, 2, 2, 4_000_000), dtype=np.uint8)}
    path = write_npz(tmp_path / "x.npz", arrays)
    assert path.stat().st_size < 1_000_000
    with (
        path.open("rb") as stream,
        pytest.raises(InputError, match=r"x\.npz.*unpacks to"),
    ):
        load_npz(stream, "x.npz", cap_bytes=1 << 20)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_bomb_of_one_line_stops_at_the_line_cap(
    pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    """200 MB of one letter in a small file end quickly."""
    (tmp_path / "x.jsonl").write_bytes(pack(b"a" * 200_000_000))
    refused(tmp_path / "x.jsonl", "longer than")


def test_members_twice_in_one_archive_are_refused(tmp_path: Path) -> None:
    """Which of two arrays of a name counts is not for us to guess."""
    path = write_npz(tmp_path / "x.npz", flatten(TRACE))
    with zipfile.ZipFile(path) as archive:
        data = archive.read("token.npy")
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("token.npy", data)
    refused(path, "token", "twice")


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"\x89PNG\r\n\x1a\n\0\0", b"PK\x03\x04", b"\x1f\x8b", b"PK\x05\x06" + b"\0" * 18],
)
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    """Empty files, pictures and bare magic numbers."""
    (tmp_path / "x.jsonl").write_bytes(content)
    refused(tmp_path / "x.jsonl")


def test_directories_and_missing_files_are_refused(tmp_path: Path) -> None:
    """The message says which."""
    refused(tmp_path, "directory")
    refused(tmp_path / "none.npz", "no such file")


def test_a_lone_array_is_no_trace(tmp_path: Path) -> None:
    """An archive without ``meta`` is told apart from a damaged one."""
    np.savez(tmp_path / "x.npz", a=np.arange(3))
    refused(tmp_path / "x.npz", "meta", "no trace")


@pytest.mark.parametrize("suffix", [".npz", ".jsonl.gz", ".jsonl.zst"])
def test_files_cut_anywhere_are_refused(suffix: str, tmp_path: Path) -> None:
    """Forty cuts through each format: never a shorter trace in silence."""
    path = tmp_path / f"x{suffix}"
    save_trace(TRACE, path)
    whole = path.read_bytes()
    for end in np.linspace(0, len(whole) - 1, 40).astype(int):
        path.write_bytes(whole[:end])
        refused(path)


def bytes_of(suffix: str) -> bytes:
    """Return the good trace in one format."""
    from oasis_sim.trace.files import _packed
    from oasis_sim.trace.jsonl import dump_jsonl
    from oasis_sim.trace.npz import dump_npz

    return dump_npz(TRACE) if suffix == ".npz" else _packed(dump_jsonl(TRACE), suffix)


GOOD = {suffix: bytes_of(suffix) for suffix in (".npz", ".jsonl", ".jsonl.gz", ".jsonl.zst")}


@settings(max_examples=250, deadline=None)
@given(data=st.data(), suffix=st.sampled_from(sorted(GOOD)))
def test_fuzzed_files_give_a_trace_or_one_error(
    data: st.DataObject, suffix: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever bytes change, the reader answers with a valid trace or an InputError."""
    raw = bytearray(GOOD[suffix])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        size = data.draw(st.integers(0, 8))
        raw[at : at + size] = data.draw(st.binary(max_size=8))
        if not raw:
            raw = bytearray(b"\0")
    path = tmp_path_factory.mktemp("fuzz") / "x.bin"
    path.write_bytes(raw)
    try:
        found = read_trace(path)
    except InputError as error:
        assert "\n  (1)" in str(error) or "\n" not in str(error)
    else:
        assert isinstance(found, AttentionTrace)
        save_trace(found, path.with_suffix(".npz"))


@settings(max_examples=100, deadline=None)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
        max_leaves=12,
    ),
    key=st.sampled_from(["position", "use_order", "mass", "token", "accepted", "accepted.ngram"]),
)
def test_any_json_in_a_step_gives_an_error_or_a_trace(
    value: object, key: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No JSON value in the place of another makes the reader stumble."""

    def change(lines: list[str]) -> None:
        step = json.loads(lines[2])
        step[key] = value
        lines[2] = json.dumps(step)

    path = write_lines(tmp_path_factory.mktemp("any") / "x.jsonl", change)
    try:
        read_trace(path)
    except InputError as error:
        assert str(path.name) in str(error)


def test_a_zip_entry_with_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    """One flipped data bit is found by the archive's checksum."""
    buffer = io.BytesIO()
    arrays = flatten(TRACE)
    np.savez(buffer, meta=np.array(json.dumps(TRACE.meta)), **arrays)
    raw = bytearray(buffer.getvalue())
    place = raw.find(struct.pack("<4H", *arrays["use_order"].ravel()[:4]))
    raw[place] ^= 1
    (tmp_path / "x.npz").write_bytes(raw)
    refused(tmp_path / "x.npz", "damaged")


LIMITED = {
    "stored blocks": (edit(0, '"stored_blocks": 6', '"stored_blocks": 16777216'), "stored_blocks"),
    "position stays": (edit(2, P2, '"position":60'), ":3: position: step 1: is 60 after 60"),
    "empty token": (edit(2, '"token":', '"token":[],"x":'), ":3: token: is missing or no"),
    "three tokens": (edit(2, '"token":', '"token":[1,2,3],"x":'), ":3: token: is missing or no"),
    "two next tokens": (edit(1, '"token":', '"token":[1,777],"x":'), ":2: token: says that 777"),
}


@pytest.mark.parametrize("case", LIMITED)
def test_lines_are_refused_where_the_mistake_is(case: str, tmp_path: Path) -> None:
    """Token lists and positions that cannot be meant are refused with line and step."""
    change, said = LIMITED[case]
    refused(write_lines(tmp_path / "t.jsonl", change), said)


def test_a_small_file_cannot_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the steps take once they are filled up is held to a limit, line by line."""
    path = write_lines(tmp_path / "t.jsonl", lambda lines: lines)
    monkeypatch.setattr("oasis_sim.trace.jsonl.CAP_BYTES", 3_300)
    refused(path, ":5: step 3: the steps take more than 3.30 kB")
    long = edit(1, '"use_order":[[[', '"use_order":[[[' + "1," * 200)
    refused(write_lines(tmp_path / "u.jsonl", long), ":2: use_order: lists of unequal length")


def test_counts_written_with_a_point_are_integers(tmp_path: Path) -> None:
    """A header with 16.0 is read as 16 and kept so."""
    meta = copy.deepcopy(dict(TRACE.meta))
    for key in ("version", "block_tokens", "steps", "stored_blocks", "prompt_tokens"):
        meta[key] = float(meta[key])
    meta["model"]["layers"] = float(meta["model"]["layers"])
    save_trace(TRACE, tmp_path / "t.jsonl")
    first, *rest = (tmp_path / "t.jsonl").read_text().splitlines()
    (tmp_path / "t.jsonl").write_text("\n".join([json.dumps(meta), *rest]) + "\n")
    for path in (write_npz(tmp_path / "t.npz", flatten(TRACE), meta), tmp_path / "t.jsonl"):
        found = read_trace(path)
        assert json.loads(first) == found.meta
        assert "16.0" not in json.dumps(found.meta)
        assert isinstance(found.meta["block_tokens"], int)


@pytest.mark.parametrize(
    ("shape", "words"), [((1,) * 70, "70 dimensions"), ((0, 1 << 40, 1 << 40), "claims the shape")]
)
def test_shapes_that_numpy_cannot_have(shape: tuple[int, ...], words: str, tmp_path: Path) -> None:
    """Too many dimensions, and products that overflow, are refused in words."""
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}"
    raw = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header.encode() + b"\n\0"
    path = write_npz(tmp_path / "t.npz", {k: v for k, v in flatten(TRACE).items() if k != "mass"})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("mass.npy", raw)
    refused(path, "mass", words)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no such file on this system")
def test_a_file_that_fails_on_reading_is_named() -> None:
    """An input/output error names the file."""
    refused(Path("/proc/self/mem"), "cannot be read")
