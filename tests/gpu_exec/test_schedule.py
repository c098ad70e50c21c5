"""The schedule type: round trip, determinism, and refusal of every broken rule or file."""

from __future__ import annotations

import dataclasses
import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oasis_sim.engine.npz import dump_npz, load_npz
from oasis_sim.engine.schedule import Schedule
from oasis_sim.errors import InputError
from tests.gpu_exec.schedule_cases import Case, make_arrays, make_meta, make_schedule

CASES = st.builds(
    Case,
    seed=st.integers(0, 1000),
    steps=st.integers(1, 4),
    layers=st.integers(1, 3),
    kv_heads=st.integers(1, 3),
    rows=st.integers(0, 4),
    dense_rows=st.integers(0, 2).filter(lambda n: n > 0),
    host_blocks=st.integers(6, 40),
    pool_blocks=st.integers(2, 6),
    cap_blocks=st.integers(0, 2),
)


@settings(max_examples=30, deadline=None)
@given(case=CASES)
def test_round_trip(case: Case) -> None:
    """A schedule that is written and read is the same schedule."""
    schedule = make_schedule(case)
    arrays = _read_back(schedule)
    for field in dataclasses.fields(Schedule):
        if field.name != "meta":
            assert np.array_equal(getattr(schedule, field.name), arrays[field.name])


def _read_back(schedule: Schedule) -> dict[str, Any]:
    archive = np.load(io.BytesIO(schedule.to_bytes()), allow_pickle=False)
    return {name: archive[name] for name in archive.files}


def test_save_load(tmp_path: Path) -> None:
    """The file holds the header and the arrays with their types."""
    schedule = make_schedule(Case())
    schedule.save(tmp_path / "schedule.npz")
    loaded = Schedule.load(tmp_path / "schedule.npz")
    assert dict(schedule.meta) == dict(loaded.meta)
    assert schedule.move_slot.dtype == loaded.move_slot.dtype
    assert schedule.to_bytes() == loaded.to_bytes()


def test_same_bytes() -> None:
    """The same schedule gives the same bytes, whenever it is written."""
    assert make_schedule(Case(seed=3)).to_bytes() == make_schedule(Case(seed=3)).to_bytes()


def test_counts() -> None:
    """Moves per step add up to all moves, and layer slices tile them."""
    schedule = make_schedule(Case(steps=4, layers=3))
    assert schedule.moves == int(schedule.step_moves().sum())
    ends = [
        (schedule.layer_slice(s, layer).start, schedule.layer_slice(s, layer).stop)
        for s in range(4)
        for layer in range(3)
    ]
    assert [0, *[end for _, end in ends[:-1]]] == [start for start, _ in ends]
    assert schedule.unit_bytes == 2 * 8 * 2 * 16


def _set(name: str, at: Any, value: int) -> Callable[[dict[str, Any]], None]:
    def change(arrays: dict[str, Any]) -> None:
        arrays[name] = np.array(arrays[name])
        arrays[name][at] = value

    return change


BREAKS: dict[str, tuple[str, Callable[[dict[str, Any]], None]]] = {
    "row": ("move_row", _set("move_row", -1, 3)),
    "head": ("move_head", _set("move_head", -1, 2)),
    "block": ("move_block", _set("move_block", 0, 24)),
    "slot": ("move_slot", _set("move_slot", 0, 6)),
    "order": ("move_row", _set("move_row", 0, 2)),
    "offset start": ("move_offset", _set("move_offset", 0, 1)),
    "offset falls": ("move_offset", _set("move_offset", 1, 10**6)),
    "offset wraps": ("move_offset", _set("move_offset", [1, 2], [2**63 - 1, -2])),
    "step gap": ("step", _set("step", 1, 77)),
    "rows": ("rows", _set("rows", 0, 9)),
    "negative rows": ("rows", _set("rows", 0, -1)),
    "padding": ("row_request", _set("row_request", (0, 3), 5)),
    "twice": ("row_request", _set("row_request", (0, 1), 100)),
    "context": ("context_tokens", _set("context_tokens", (0, 0), 0)),
    "time": ("sim_step_ps", _set("sim_step_ps", 0, -1)),
    "endless step": ("sim_step_ps", _set("sim_step_ps", 0, 2**63 - 1)),
    "endless stage": ("sim_stage_ps", _set("sim_stage_ps", (0, 0), 2**63 - 1)),
}


@pytest.mark.parametrize("name", sorted(BREAKS))
def test_broken_rule(name: str) -> None:
    """Each broken rule is refused, naming the array."""
    field, change = BREAKS[name]
    arrays = make_arrays(Case(seed=1))
    change(arrays)
    with pytest.raises(InputError) as caught:
        Schedule.from_arrays(make_meta(Case(seed=1)), **arrays)
    assert field == caught.value.field


def test_cap_and_repeats() -> None:
    """A head that gets more blocks than the cap, or one slot twice, is refused."""
    arrays = make_arrays(Case(cap_blocks=0, steps=1, layers=1))
    moves = {"move_row": [0, 0], "move_head": [0, 0], "move_block": [3, 4]}
    arrays.update(moves, move_slot=[1, 1], move_offset=[0, 2])
    for cap, field in ((1, "move_offset"), (2, "move_slot")):
        with pytest.raises(InputError) as caught:
            Schedule.from_arrays(make_meta(Case(cap_blocks=cap, steps=1, layers=1)), **arrays)
        assert field == caught.value.field
    arrays.update(move_slot=[1, 2], move_block=[3, 3])
    with pytest.raises(InputError) as caught:
        Schedule.from_arrays(make_meta(Case(cap_blocks=2, steps=1, layers=1)), **arrays)
    assert caught.value.field == "move_block"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("transport",), "pigeon"),
        (("layers",), 0),
        (("layers",), 10**9),
        (("kv_heads",), True),
        (("stages",), "qkv"),
        (("stages",), ["qkv", "qkv", "transfer"]),
        (("scheme", "block_tokens"), 0),
        (("scheme", "pool_blocks"), "6"),
        (("model", "head_dim"), 1 << 40),
        (("model",), []),
        (("host_blocks",), None),
        (("tp",), 0),
        (("tp",), "2"),
        (("tp",), None),
        (("collective_ps",), [1, 1]),
        (("collective_ps",), [0, -1, 0]),
        (("collective_ps",), [10**10] * 3),
        (("collective_ps",), [1.5] * 3),
    ],
)
def test_broken_header(path: tuple[str, ...], value: Any) -> None:
    """A header field that is missing, of another type or out of range is refused by name."""
    meta = make_meta(Case())
    target = meta
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    with pytest.raises(InputError) as caught:
        Schedule.from_arrays(meta, **make_arrays(Case()))
    assert f"meta.{'.'.join(path)}" == caught.value.field


def test_cast_is_lossless() -> None:
    """Numbers that do not fit the file's types, or fractions, are refused."""
    for values in (np.array([70000] * 10), np.array([0.5] * 10)):
        arrays = make_arrays(Case())
        arrays["move_slot"] = values
        with pytest.raises(InputError) as caught:
            Schedule.from_arrays(make_meta(Case()), **arrays)
        assert caught.value.field == "move_slot"


def test_unknown_array() -> None:
    """Arrays that do not belong to a schedule are named."""
    with pytest.raises(InputError, match="extra"):
        Schedule.from_arrays(make_meta(Case()), extra=[1], **make_arrays(Case()))


# Hostile files --------------------------------------------------------------------------------


def _zip(members: dict[str, bytes], compress: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compress) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def _npy(array: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array), **options)
    return buffer.getvalue()


def _claim(shape: str) -> bytes:
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


HOSTILE = {
    "empty": b"",
    "text": b"hello, world\n" * 20,
    "not a zip": b"PK\x03\x04" + b"\0" * 100,
    "no arrays": _zip({}),
    "other member": _zip({"../../etc/x.npy": b""}),
    "pickle": _zip({"a.npy": _npy(np.array([{}], dtype=object), allow_pickle=True)}),
    "bare pickle": b"\x80\x04K\x01.",
    "huge claim": _zip({"a.npy": _claim("(1099511627776,)")}),
    "overflowing claim": _zip({"a.npy": _claim("(4294967296, 4294967296, 2)")}),
    "negative shape": _zip({"a.npy": _claim("(-1,)")}),
    "deep header": _zip({"a.npy": _claim("(" * 1500)}),
    "record": _zip({"a.npy": _npy(np.zeros(2, dtype=[("x", "<i4")]))}),
    "short": _zip({"a.npy": _npy(np.zeros(9))[:-8]}),
    "column major": _zip({"a.npy": _npy(np.asfortranarray(np.ones((2, 3))))}),
    "bomb": _zip({"a.npy": b"\0" * 40_000_000}, zipfile.ZIP_DEFLATED),
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_hostile_archive(name: str, tmp_path: Path) -> None:
    """Damaged or hostile archives end in an InputError that names the file."""
    path = tmp_path / "x.npz"
    path.write_bytes(HOSTILE[name])
    with pytest.raises(InputError) as caught:
        load_npz(path, ["a"], 1 << 20)
    assert str(path) == caught.value.file


def test_hostile_paths(tmp_path: Path) -> None:
    """Directories, pipes, devices and dead links are refused at once; a good link is followed."""
    good = tmp_path / "good.npz"
    good.write_bytes(dump_npz({"a": np.arange(3)}))
    (tmp_path / "link").symlink_to(good)
    (tmp_path / "dead").symlink_to(tmp_path / "nothing")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "zero").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    assert np.array_equal([0, 1, 2], load_npz(tmp_path / "link", ["a"], 1 << 20)["a"])
    for name in ("dead", "loop", "zero", "pipe", "nothing", ".", "a\0b"):
        with pytest.raises(InputError):
            load_npz(tmp_path / name, ["a"], 1 << 20)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_schedule(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A schedule file with flipped or missing bytes is read equal or refused, never a traceback."""
    original = make_schedule(Case()).to_bytes()
    damaged = bytearray(original)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    keep = data.draw(st.integers(0, len(damaged)) | st.just(len(damaged)))
    path = tmp_path_factory.mktemp("damaged") / "schedule.npz"
    path.write_bytes(bytes(damaged[:keep]))
    try:
        loaded = Schedule.load(path)
    except InputError as error:
        assert str(path) == error.file
    else:
        assert original == loaded.to_bytes()


@pytest.mark.parametrize(
    "meta", ["[]", "{", "{}", '{"format":"oasis-schedule","version":2}', "NaN"]
)
def test_bad_meta(meta: str, tmp_path: Path) -> None:
    """A header that is no JSON object of this version is refused."""
    arrays = _read_back(make_schedule(Case()))
    path = tmp_path / "schedule.npz"
    path.write_bytes(dump_npz({**arrays, "meta": np.array(meta)}))
    with pytest.raises(InputError, match="meta"):
        Schedule.load(path)


def test_wrong_type(tmp_path: Path) -> None:
    """An array of another type than the format's is refused."""
    arrays = _read_back(make_schedule(Case()))
    arrays["move_slot"] = arrays["move_slot"].astype(np.int64)
    path = tmp_path / "schedule.npz"
    path.write_bytes(dump_npz(arrays))
    with pytest.raises(InputError, match="move_slot"):
        Schedule.load(path)
