"""Trace files: lossless both ways, deterministic, and found by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oasis_sim.errors import InputError, UsageError
from oasis_sim.trace import AttentionTrace, load_trace, read_trace, save_trace
from oasis_sim.trace.build import flatten
from tests.strategies import attention_traces, make_trace

SUFFIXES = (".npz", ".jsonl", ".jsonl.gz", ".jsonl.zst")


def assert_same(expected: AttentionTrace, actual: AttentionTrace) -> None:
    """Compare header and arrays, order and types included."""
    assert json.dumps(expected.meta) == json.dumps(actual.meta)
    left, right = flatten(expected), flatten(actual)
    assert list(left) == list(right)
    for key, array in left.items():
        assert array.dtype == right[key].dtype, key
        np.testing.assert_array_equal(array, right[key], key)


@settings(max_examples=40, deadline=None)
@given(trace=attention_traces(), chain=st.permutations(SUFFIXES))
def test_every_conversion_is_lossless(
    trace: AttentionTrace, chain: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Through all four formats in any order, nothing changes."""
    folder = tmp_path_factory.mktemp("chain")
    found = trace
    for suffix in chain:
        path = folder / f"trace{suffix}"
        save_trace(found, path)
        found = read_trace(path)
    assert_same(trace, found)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_same_trace_same_bytes(suffix: str, tmp_path: Path) -> None:
    """Writing twice gives the same file: no dates, no order by chance."""
    trace = make_trace(1)
    save_trace(trace, tmp_path / f"a{suffix}")
    save_trace(trace, tmp_path / f"b{suffix}")
    first = (tmp_path / f"a{suffix}").read_bytes()
    assert first == (tmp_path / f"b{suffix}").read_bytes()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_content_decides_the_format(suffix: str, tmp_path: Path) -> None:
    """A file is read by what it holds, not by its name."""
    trace = make_trace(2)
    save_trace(trace, tmp_path / f"a{suffix}")
    (tmp_path / f"a{suffix}").rename(tmp_path / "renamed.bin")
    assert_same(trace, read_trace(tmp_path / "renamed.bin"))


def test_a_name_finds_the_compressed_file_beside_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``x.jsonl`` finds ``x.jsonl.zst`` in the current directory."""
    monkeypatch.chdir(tmp_path)
    trace = make_trace(3)
    save_trace(trace, tmp_path / "x.jsonl.zst")
    assert_same(trace, load_trace("x.jsonl"))
    assert_same(trace, load_trace("x"))


def test_numpy_reads_what_is_written(tmp_path: Path) -> None:
    """The archive is an ordinary one: ``numpy.load`` without pickles opens it."""
    trace = make_trace(4)
    save_trace(trace, tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz", allow_pickle=False) as archive:
        assert json.loads(str(archive["meta"])) == trace.meta
        np.testing.assert_array_equal(trace.use_order, archive["use_order"])
        assert () == archive["meta"].shape


def test_an_unknown_suffix_is_a_usage_error(tmp_path: Path) -> None:
    """The formats are named; nothing is written."""
    with pytest.raises(UsageError, match=r"\.jsonl\.zst"):
        save_trace(make_trace(1), tmp_path / "x.csv")
    assert [] == list(tmp_path.iterdir())


def test_a_broken_trace_is_not_written(tmp_path: Path) -> None:
    """The writer holds its input to the schema."""
    trace = make_trace(1)
    order = trace.use_order.copy()
    order[0, 0, 0, 1] = order[0, 0, 0, 0]
    with pytest.raises(InputError, match="twice"):
        save_trace(replace(trace, use_order=order), tmp_path / "x.npz")
    assert [] == list(tmp_path.iterdir())


# --- files of other people --------------------------------------------------------------------


def test_numpy_savez_with_wider_integers_is_read(tmp_path: Path) -> None:
    """int64 positions and orders from a plain ``numpy.savez`` fit the schema's types."""
    trace = make_trace(5)
    arrays = {key: array.astype(np.int64) for key, array in flatten(trace).items()}
    np.savez(tmp_path / "x.npz", meta=np.array(json.dumps(trace.meta)), **arrays)
    assert_same(trace, read_trace(tmp_path / "x.npz"))


def test_column_major_arrays_are_read(tmp_path: Path) -> None:
    """Fortran order is only a layout."""
    trace = make_trace(5)
    arrays = {key: np.asfortranarray(array) for key, array in flatten(trace).items()}
    np.savez_compressed(tmp_path / "x.npz", meta=np.array(json.dumps(trace.meta)), **arrays)
    assert_same(trace, read_trace(tmp_path / "x.npz"))


def step_objects(trace: AttentionTrace) -> list[dict[str, object]]:
    """Return the steps as another writer might: short lists, grouped drafters, one token."""
    steps = []
    for step in range(trace.steps):
        orders = {
            "use_order": trace.use_order,
            **{f"pred_order.{name}": order for name, order in trace.pred_order.items()},
        }
        lists = {
            key: [[[b for b in row if b != 65535] for row in heads] for heads in o[step].tolist()]
            for key, o in orders.items()
        }
        steps.append(
            {
                "use_order": lists.pop("use_order"),
                "pred_order": {key.partition(".")[2]: value for key, value in lists.items()},
                "accepted": {name: int(flag[step]) for name, flag in trace.accepted.items()},
                "draft_token": {name: int(ids[step]) for name, ids in trace.draft_token.items()},
                "token": int(trace.token[step]),
                "position": int(trace.position[step]),
            }
        )
    return steps


def test_a_sparse_writers_json_lines_are_read(tmp_path: Path) -> None:
    """Orders without padding, drafters as objects, CRLF, a byte-order mark and blank lines."""
    trace = make_trace(6, stored=20, with_mass=False)
    lines = [json.dumps(trace.meta), "", *(json.dumps(step) for step in step_objects(trace))]
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode() + b"\r\n\r\n")
    found = read_trace(path)
    assert any("next_token" in warning for warning in found.warnings)
    assert -1 == found.token[-1]
    token = np.append(trace.token[:-1], np.int32(-1))
    assert_same(replace(trace, token=token), found)


def test_unknown_keys_are_named_in_one_warning(tmp_path: Path) -> None:
    """Extra keys of the header stay, those of the steps are dropped; both are said."""
    trace = make_trace(7, drafters=())
    meta = dict(trace.meta) | {"comment": "mine"}
    save_trace(replace(trace, meta=meta), tmp_path / "x.jsonl")
    lines = (tmp_path / "x.jsonl").read_text().splitlines()
    lines[1:] = [line[:-1] + ',"loss":0.5,"note":"x"}' for line in lines[1:]]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    found = read_trace(tmp_path / "x.jsonl")
    assert "mine" == found.meta["comment"]
    assert ["comment" in found.warnings[0], "loss, note" in found.warnings[1]] == [True, True]
    assert 2 == len(found.warnings)


def test_a_thin_header_is_read_with_warnings(tmp_path: Path) -> None:
    """Descriptions may be missing; shapes may not."""
    trace = make_trace(8)
    meta = {
        key: value
        for key, value in trace.meta.items()
        if key not in {"layer_span", "text", "recorder", "aggregation", "drafters", "mass_code"}
    }
    save_trace(replace(trace, meta=meta), tmp_path / "x.npz")
    found = read_trace(tmp_path / "x.npz")
    assert 5 == len(found.warnings)
    assert found.full_layers == (0, 1)
