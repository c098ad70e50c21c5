"""The timeline file: tracks, colours, no overlap."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oasis_sim.engine.result import Slice
from oasis_sim.errors import RunFailed
from oasis_sim.report.timeline import LOOKS, check_no_overlap, write_timeline
from tests.factories import tiny_result, tiny_slices

PERFETTO_GREEN_HUES = range(95, 160)
PERFETTO_RED_HUES = (*range(20), *range(350, 360))


def events_of(slices: tuple[Slice, ...], kind: str = "X") -> list[dict[str, Any]]:
    """Return the events of one kind in the timeline of a run with these slices."""
    text = write_timeline(tiny_result(slices=slices))
    return [event for event in json.loads(text)["traceEvents"] if event["ph"] == kind]


def perfetto_hue(name: str) -> int:
    """Return the hue that Perfetto gives a slice of this name (its 32-bit FNV-like hash).

    JavaScript multiplies in floating point, which is part of the hash.
    """
    state = 0x811C9DC5 & 0xFFFFFFF
    for character in name:
        state ^= ord(character)
        state = int(float(state) * 16_777_619.0) & 0xFFFFFFFF
        state -= (state & 0x80000000) << 1
    return abs(state) % 360


@pytest.mark.parametrize("stage", ["qkv", "attention", "output_ffn", "lm_head", "draft", "prefill"])
def test_compute_is_green_in_both_viewers(stage: str) -> None:
    """chrome://tracing goes by cname, Perfetto by the name's hash."""
    assert LOOKS[stage].colour == "good"
    assert perfetto_hue(LOOKS[stage].label) in PERFETTO_GREEN_HUES


@pytest.mark.parametrize("stage", ["transfer", "pcie_h2d", "pcie_d2h"])
def test_transfers_are_red_in_both_viewers(stage: str) -> None:
    """Streams and links that move KV stand out against the compute above them."""
    assert LOOKS[stage].colour == "terrible"
    assert perfetto_hue(LOOKS[stage].label) in PERFETTO_RED_HUES


def test_every_track_is_named_once_and_slices_keep_their_times() -> None:
    """Slices land on their own track, in microseconds."""
    names = [e["args"]["name"] for e in events_of(tiny_slices(), "M") if e["name"] == "thread_name"]
    assert names == ["step", "compute (foreground)", "transfer", "PCIe, host to GPU"]
    attention = next(e for e in events_of(tiny_slices()) if e["name"] == "Attention 0")
    assert (attention["ts"], attention["dur"]) == (62_000.0, 2_000.0)


def test_waiting_for_a_transfer_is_a_slice_of_its_own() -> None:
    """A hole between QKV and attention of a layer is drawn as what it is."""
    waits = [e for e in events_of(tiny_slices()) if e["name"] == "Waiting on transfer 0"]
    assert [(wait["ts"], wait["dur"], wait["cname"]) for wait in waits] == [
        (61_000.0, 1_000.0, "yellow")
    ]


def test_links_and_streams_are_called_differently() -> None:
    """The same transfer is a gather on the link and a fetch on the stream."""
    names = {e["cat"]: e["name"] for e in events_of(tiny_slices())}
    assert names["pcie_h2d"] == "Gather over PCIe 0"
    assert names["transfer"] == "Block fetch from host 0"


def test_transfers_lie_under_compute() -> None:
    """The point of the picture: while a block travels, its neighbours compute."""
    events = events_of(tiny_slices())
    transfer = next(e for e in events if e["cat"] == "transfer")
    compute = [e for e in events if e["cat"] == "compute"]
    covered = sum(
        max(
            0.0,
            min(e["ts"] + e["dur"], transfer["ts"] + transfer["dur"])
            - max(e["ts"], transfer["ts"]),
        )
        for e in compute
    )
    assert covered == transfer["dur"]


@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 5_000)), min_size=1, max_size=30))
def test_rounding_to_nanoseconds_never_makes_neighbours_overlap(
    gaps: list[tuple[int, int]],
) -> None:
    """Slices of a track are disjoint in the file however short they are."""
    slices, clock = [], 0
    for pause, length in gaps:
        slices.append(Slice("compute", "qkv", clock + pause, clock + pause + length, {}))
        clock += pause + length
    events = [event for event in events_of(tuple(slices)) if event["cat"] == "compute"]
    ends = [round(1_000 * (event["ts"] + event["dur"])) for event in events]
    starts = [round(1_000 * event["ts"]) for event in events]
    assert all(start >= end for start, end in zip(starts[1:], ends, strict=False))
    assert all(event["dur"] > 0 for event in events)


def test_overlapping_slices_of_a_track_are_refused() -> None:
    """Viewers draw such slices wrongly, so they never leave the program."""
    slices = [Slice("transfer", "transfer", 0, 10, {}), Slice("transfer", "transfer", 9, 12, {})]
    with pytest.raises(RunFailed, match="overlaps another slice on track transfer"):
        check_no_overlap(slices)


def test_touching_slices_and_other_tracks_are_fine() -> None:
    """A slice may begin where the last one ends, and tracks do not mind each other."""
    check_no_overlap(
        [
            Slice("transfer", "transfer", 0, 10, {}),
            Slice("transfer", "transfer", 10, 12, {}),
            Slice("compute", "qkv", 5, 11, {}),
        ]
    )


def test_a_run_without_slices_gives_an_empty_timeline() -> None:
    """No step, no track, still a file that opens."""
    assert events_of(()) == []


def test_steps_stand_above_their_slices() -> None:
    """Each step that the slices touch is one slice of the step track, with its rows."""
    steps = [event for event in events_of(tiny_slices()) if event["cat"] == "step"]
    assert [event["name"] for event in steps] == ["step 1"]
    assert steps[0]["args"]["sparse_rows"] == 2
