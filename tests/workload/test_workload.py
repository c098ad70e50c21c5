"""Workloads: every row is used, dropped with a warning, or refused with its place."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oasis_sim.engine.spec import first_requests
from oasis_sim.errors import InputError, UsageError
from oasis_sim.workload import FORMATS, Workload, closed_loop, load_workload, poisson
from tests.strategies import (
    ABOVE_EXACT,
    ABOVE_FLOAT,
    NOT_FINITE,
    bad_counts,
    file_contents,
    hostile_names,
    request_rows,
    workloads,
)

# The rows of the tests: (arrival in ms, prompt tokens, output tokens).
ROWS = [(0, 1024, 8), (1000, 512, 8), (2500, 2048, 16)]
NO_PREFIX_CACHE = "hash_ids are ignored: no prefix is cached, every prompt is prefilled in full"
SHARED = os.environ.get("OASIS_SHARED_DIR")
FUNCTION_SCOPED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def content_of(name: str, rows: list[tuple[int, int, int]]) -> str:
    """Write rows in a format, arrivals exact."""
    spec = FORMATS[name]
    if spec.is_json:
        unit = 1 if spec.time_unit == "ms" else 1000
        return "".join(
            json.dumps(
                dict(zip(spec.needed, (at if unit == 1 else at / unit, *counts), strict=True))
            )
            + "\n"
            for at, *counts in rows
        )
    lines = [",".join(spec.needed)]
    for at, prompt, output in rows:
        time = f"{at / 1000:.3f}"
        if name == "azure":
            hours, rest = divmod(at, 3_600_000)
            minutes, rest = divmod(rest, 60_000)
            time = f"2023-11-16 {hours:02}:{minutes:02}:{rest // 1000:02}.{rest % 1000:03}0000"
        lines.append(f"{time},{prompt},{output}")
    return "\r\n".join(lines) + "\r\n"


def load_text(directory: Path, text: str | bytes, name: str = "mooncake") -> Workload:
    """Load the text of a request file."""
    path = directory / "requests.file"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_workload(path, name)


def rows_of(workload: Workload) -> list[tuple[int, int, int]]:
    """Return a workload as rows."""
    return list(
        zip(
            (workload.arrival_ps // 10**9).tolist(),
            workload.prompt_tokens.tolist(),
            workload.output_tokens.tolist(),
            strict=True,
        )
    )


def mooncake(**changes: Any) -> str:
    """Return three rows of which the second is changed (`...` removes a key)."""
    lines = content_of("mooncake", ROWS).splitlines()
    row = {**json.loads(lines[1]), **changes}
    lines[1] = json.dumps({key: value for key, value in row.items() if value is not ...})
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", FORMATS)
@given(rows=request_rows())
@FUNCTION_SCOPED
def test_formats_agree(tmp_path: Path, name: str, rows: list[tuple[int, int, int]]) -> None:
    """The same requests in any format are the same workload: sorted, the first at 0."""
    first = min(at for at, _, _ in rows)
    expected = sorted(((at - first, *counts) for at, *counts in rows), key=lambda row: row[0])
    workload = load_text(tmp_path, content_of(name, rows), name)
    assert expected == rows_of(workload)
    is_sorted = rows == sorted(rows, key=lambda row: row[0])
    assert is_sorted == (not any("sorted" in warning for warning in workload.warnings))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", "\n\n"),
        lambda text: "\ufeff" + text,
        lambda text: text.rstrip("\n"),
        lambda text: gzip.compress(text.encode(), mtime=0),
        lambda text: text.replace('"output_length"', '"hash_ids": [0], "output_length"'),
        lambda text: text.replace('"output_length"', '"hash_ids": null, "output_length"'),
    ],
    ids=["crlf", "blank", "bom", "no-final-newline", "gz", "hashes", "null-hashes"],
)
def test_harmless_variants_agree(tmp_path: Path, change: Any) -> None:
    """Line ends, blank lines, marks, compression and prefix hashes change nothing."""
    workload = load_text(tmp_path, change(content_of("mooncake", ROWS)))
    assert ROWS == rows_of(workload)
    assert () == tuple(text for text in workload.warnings if text != NO_PREFIX_CACHE)


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"foo": {"a": 1}}, "unknown fields were ignored in 1 of the rows: foo"),
        ({"hash_ids": [1, 2, 3]}, "more prefix hashes than the length allows: 1 of the rows"),
        ({"hash_ids": [1, 2], "block_size": 256}, None),
        ({"hash_ids": [1, 2, 3], "block_size": 256}, "more prefix hashes"),
        ({"timestamp": 2600}, "not in order of arrival; they were sorted"),
    ],
)
def test_counted_warnings(tmp_path: Path, changes: dict[str, Any], warning: str | None) -> None:
    """What is ignored or assumed is said and counted."""
    found = load_text(tmp_path, mooncake(**changes)).warnings
    assert ("hash_ids" in changes) == (NO_PREFIX_CACHE in found)
    warnings = [text for text in found if text != NO_PREFIX_CACHE]
    assert (0 if warning is None else 1) == len(warnings)
    assert warning is None or warning in warnings[0]


@pytest.mark.parametrize("key", ["input_length", "output_length"])
@given(value=bad_counts())
@FUNCTION_SCOPED
def test_bad_counts_are_refused(tmp_path: Path, key: str, value: Any) -> None:
    """Each wrong kind or range of token count is refused at its line and field."""
    with pytest.raises(InputError, match=rf":2: {key}: .*; "):
        load_text(tmp_path, mooncake(**{key: value}))


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, "1000", "1e9", "", [], {}, -1, ABOVE_EXACT, ABOVE_FLOAT, 1e300),
        *(*NOT_FINITE, ...),
    ],
)
def test_bad_timestamps_are_refused(tmp_path: Path, value: Any) -> None:
    """Each wrong kind or range of timestamp is refused at its line and field."""
    with pytest.raises(InputError, match=r":2: timestamp: .*; "):
        load_text(tmp_path, mooncake(timestamp=value))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no requests"),
        ("\n\r\n \n", "holds no requests"),
        (mooncake(output_length=...), ":2: output_length: is missing; every row needs"),
        (mooncake(hash_ids="x"), ":2: hash_ids: is not a list"),
        (mooncake(hash_ids=[1], block_size=0), ":2: hash_ids: 0 is out of range"),
        (mooncake()[:-12], ":3: is not valid JSON"),
        (mooncake() + "[1, 2]\n", ":4: is not a JSON object"),
        (mooncake() + '{"timestamp": 1, "timestamp": 2}\n', ":4: key 'timestamp' stands twice"),
        (mooncake() + "\0\n", ":4: holds binary data"),
        (mooncake() + "[" * 100_000 + "\n", ":4: is nested too deeply"),
        (mooncake(timestamp=2**53), "span more than 53 days when read in ms"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, said: str) -> None:
    """Empty, cut-off and nested-wrong files are refused with the place."""
    with pytest.raises(InputError, match=said):
        load_text(tmp_path, text)


HEADER = "arrival_s,prompt_tokens,output_tokens\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no requests"),
        (HEADER, "holds no requests"),
        ("0,10,10\n", ":1: no column arrival_s, prompt_tokens, output_tokens"),
        ("arrival,prompt_tokens,output_tokens\n", "did you mean 'arrival'"),
        ("arrival_s,prompt_tokens,output_tokens,arrival_s\n0,1,1,0\n", "'arrival_s' stands twice"),
        (HEADER + "0,10,10\n1,10\n", ":3: has 2 cells under 3 columns"),
        (HEADER + "0,10,10,10\n", ":2: has 4 cells under 3 columns"),
        (HEADER + "x,10,10\n", ":2: arrival_s: 'x' is text"),
        (HEADER + "nan,10,10\n", ":2: arrival_s: 'nan' is text"),
        (HEADER + "inf,10,10\n", ":2: arrival_s: 'inf' is text"),
        (HEADER + "-1,10,10\n", ":2: arrival_s: -1 is out of range"),
        (HEADER + "1e300,10,10\n", ":2: arrival_s"),
        (HEADER + "0,1e9,10\n", ":2: prompt_tokens: 1000000000.0 is not a whole number"),
        (HEADER + "0,10.5,10\n", ":2: prompt_tokens: 10.5 is not a whole number"),
        (HEADER + "0,,10\n", ":2: prompt_tokens: '' is text"),
        (HEADER + "0,10,0\n", ":2: output_tokens: 0 is out of range"),
        (HEADER + f"0,10,{2**53 + 1}\n", ":2: output_tokens"),
        (HEADER + "0,10,=1+1\n", ":2: output_tokens: '=1\\+1' is text"),
        (HEADER + '0,"10,10\n1,1,1\n', "is not CSV"),
        (HEADER + "0,10,10\n1," + "9" * 200_000 + ",1\n", "is not CSV"),
    ],
)
def test_bad_csv_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """A CSV needs its header, whole rows and plain numbers."""
    with pytest.raises(InputError, match=said):
        load_text(tmp_path, text, "csv")


@pytest.mark.parametrize(("name", "blank"), [("mooncake", "\n"), ("csv", "\n"), ("csv", ',"",\n')])
def test_a_flood_of_blank_lines_is_refused(tmp_path: Path, name: str, blank: str) -> None:
    """A gigabyte of line ends in a small compressed file is not read to its end."""
    start = HEADER if name == "csv" else ""
    line = 1002 if name == "csv" else 1001
    with pytest.raises(InputError, match=f":{line}: holds too many blank lines"):
        load_text(tmp_path, start + blank * 1001, name)


def test_more_requests_than_the_limit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading stops at the first row too many."""
    monkeypatch.setattr("oasis_sim.workload.load.LARGEST_REQUESTS", 3)
    assert 3 == load_text(tmp_path, HEADER + "0,1,1\n" * 3, "csv").requests
    with pytest.raises(InputError, match=":5: holds more than 3 requests"):
        load_text(tmp_path, HEADER + "0,1,1\n" * 4, "csv")


def test_fewer_rows_than_requests_are_said(tmp_path: Path) -> None:
    """A file that holds less than was asked for is used with a note."""
    workload = load_text(tmp_path, HEADER + "0,1,1\n" * 3, "csv")
    assert ("5 requests were asked for, the file holds 3",) == first_requests(workload, 5).warnings
    assert ((), 2) == (first_requests(workload, 2).warnings, first_requests(workload, 2).requests)


def test_a_rate_of_almost_nothing_is_refused() -> None:
    """Gaps of 1e300 seconds are refused in words."""
    for rate in (1e-300, 5e-324, 1e-9):
        with pytest.raises(UsageError, match="more than 53 days; raise the rate"):
            poisson(rate, 10, 1, 1, 0)


def test_csv_variants(tmp_path: Path) -> None:
    """Quotes, spaces, column order and other columns are fine; a missing line end is told."""
    text = 'output_tokens,note, arrival_s ,prompt_tokens\n"8",x, 0 ,1024\n8,y,1.000,512'
    workload = load_text(tmp_path, text, "csv")
    assert ROWS[:2] == rows_of(workload)
    assert [
        "unknown fields were ignored in 2 of the rows: note",
        "the last line has no line end: is the file complete?",
    ] == list(workload.warnings)


def test_burstgpt_failures_are_dropped(tmp_path: Path) -> None:
    """Rows without response tokens failed where they were recorded; they are counted."""
    text = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,Conversation log\n"
        "118,GPT-4,417,276,693,Conversation log\n"
    )
    workload = load_text(tmp_path, text, "burstgpt")
    assert [(0, 472, 18), (113_000, 417, 276)] == rows_of(workload)
    assert (
        "times were shifted by 5 s so that the first arrives at 0",
        "failed requests (no output tokens) were dropped: 1 of the rows",
    ) == workload.warnings


@pytest.mark.parametrize(
    ("stamp", "ps"),
    [
        ("2023-11-16 18:17:03.9799600", 979_960_000_000),
        ("2023-11-16 18:17:04.0000001", 1_000_000_100_000),
        ("2023-11-16T18:18:03", 60_000_000_000_000),
        ("2023-11-16 19:17:03+01:00", 0),
        ("2023-11-16 13:17:04.5-05:00", 1_500_000_000_000),
    ],
)
def test_azure_times_are_exact(tmp_path: Path, stamp: str, ps: int) -> None:
    """Dates keep all seven digits, and zones are honoured."""
    text = f"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,1\n{stamp},2,2\n"
    assert ps == load_text(tmp_path, text, "azure").arrival_ps[-1]


@pytest.mark.parametrize("stamp", ["2023-13-01 00:00:00", "2023-11-16", "17", "2023-11-16 25:00:0"])
def test_azure_times_that_are_none(tmp_path: Path, stamp: str) -> None:
    """What is no date is refused with an example."""
    text = f"TIMESTAMP,ContextTokens,GeneratedTokens\n{stamp},1,1\n"
    with pytest.raises(InputError, match=r":2: TIMESTAMP: .*write it as 2023"):
        load_text(tmp_path, text, "azure")


def test_decimal_times_are_exact(tmp_path: Path) -> None:
    """A time in seconds means the decimal that was written, to the picosecond."""
    text = HEADER + "0,1,1\n8461.3,1,1\n8461.300000000001,1,1\n"
    arrivals = load_text(tmp_path, text, "csv").arrival_ps.tolist()
    assert [0, 8_461_300_000_000_000, 8_461_300_000_000_001] == arrivals


def test_unit_is_said(tmp_path: Path) -> None:
    """The summary states the resolved unit, the span and the mean rate."""
    shown = load_text(tmp_path, mooncake()).summary
    assert "requests.file (mooncake, time in ms): 3 requests over 2.500 s, 0.800" in shown
    assert "time in s" in load_text(tmp_path, content_of("bailian", ROWS), "bailian").summary


def test_unknown_format(tmp_path: Path) -> None:
    """An unknown format is a usage error that lists the known ones."""
    with pytest.raises(UsageError, match="did you mean 'mooncake'"):
        load_workload(tmp_path / "x", "moonkake")


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
@FUNCTION_SCOPED
def test_fuzz(tmp_path: Path, name: str, data: st.DataObject) -> None:
    """Any file is a workload or an InputError that names the file."""
    content = data.draw(file_contents(content_of(name, ROWS).encode()))
    try:
        load_text(tmp_path, content, name).check()
    except InputError as error:
        assert "requests.file" in str(error)


@given(name=hostile_names())
@FUNCTION_SCOPED
def test_hostile_fields_are_shown_harmless(tmp_path: Path, name: str) -> None:
    """Names of unknown fields bring no control characters into a warning."""
    for warning in load_text(tmp_path, mooncake(**{name: 1})).warnings:
        assert warning.isprintable()


def test_closed_loop() -> None:
    """All requests of a closed loop are equal and there from the start."""
    workload = closed_loop(3, 16384, 2048)
    assert [(0, 16384, 2048)] * 3 == rows_of(workload)
    assert (0.0, 0.0) == (workload.span_s, workload.mean_rate_per_s)


@given(st.floats(0.001, 1000), st.integers(1, 200), st.integers(0, 2**32))
def test_poisson_is_reproducible(rate: float, requests: int, seed: int) -> None:
    """A seed gives the same arrivals every time, the first at 0, in order."""
    first, second = (poisson(rate, requests, 10, 10, seed) for _ in range(2))
    assert first.arrival_ps.tolist() == second.arrival_ps.tolist()
    assert 0 == first.arrival_ps[0]


def test_poisson_statistics() -> None:
    """Gaps have the mean and spread of an exponential, and differ between seeds."""
    gaps = np.diff(poisson(4.0, 20_001, 10, 10, 7).arrival_ps) / 1e12
    assert 0.25 == pytest.approx(gaps.mean(), rel=0.03)
    assert 0.25 == pytest.approx(gaps.std(), rel=0.05)
    assert np.exp(-1) == pytest.approx((gaps > 0.25).mean(), rel=0.03)
    other = poisson(4.0, 20_001, 10, 10, 8).arrival_ps
    assert not np.array_equal(np.diff(other) / 1e12, gaps)


def test_poisson_is_the_same_on_every_machine() -> None:
    """A golden sample, checked against the invariant above: rounded and in integers."""
    assert [0, 201_638_046_776] == poisson(2.0, 2, 1, 1, 1).arrival_ps.tolist()


@pytest.mark.parametrize(
    "arguments",
    [
        (0.0, 5, 1, 1, 0),
        (float("nan"), 5, 1, 1, 0),
        (float("inf"), 5, 1, 1, 0),
        (-1.0, 5, 1, 1, 0),
        (1.0, 0, 1, 1, 0),
        (1.0, 5, 0, 1, 0),
        (1.0, 5, 1, 0, 0),
        (1.0, 5, 1, 2**40, 0),
        (1.0, 5, 1, 1, -1),
        (1e-9, 5, 1, 1, 0),
    ],
)
def test_bad_poisson(arguments: tuple[Any, ...]) -> None:
    """Senseless parameters are usage errors."""
    with pytest.raises(UsageError, match=r"give|raise"):
        poisson(*arguments)


@given(workloads())
def test_workload_is_frozen_and_checked(workload: Workload) -> None:
    """Arrays of a workload cannot be changed, and describe what they hold."""
    with pytest.raises(ValueError, match="read-only"):
        workload.arrival_ps[0] = 1
    workload.check()
    if workload.span_s:
        assert workload.requests - 1 == pytest.approx(workload.mean_rate_per_s * workload.span_s)


@pytest.mark.parametrize(
    "columns",
    [
        ([], [], []),
        ([1, 0], [1, 1], [1, 1]),
        ([-1], [1], [1]),
        ([0], [0], [1]),
        ([0], [1], [0]),
        ([0], [1, 1], [1]),
        ([2**63 - 1], [1], [1]),
    ],
)
def test_impossible_workloads(columns: tuple[list[int], ...]) -> None:
    """A workload that is empty, out of order or without tokens cannot be built."""
    with pytest.raises(InputError):
        Workload("w", "csv", *(np.array(column, dtype=np.int64) for column in columns))


@pytest.mark.skipif(SHARED is None, reason="OASIS_SHARED_DIR is not set: no public samples here")
def test_public_samples() -> None:
    """Real request files load whole."""
    folder = Path(str(SHARED)) / "workloads"
    conversation = load_workload(folder / "mooncake_conversation_head400.jsonl", "mooncake")
    assert (400, 141.0) == (conversation.requests, conversation.span_s)
    assert ["hash_ids"] == [text.split()[0] for text in conversation.warnings]
    code = load_workload(folder / "azure_code_head1500.csv", "azure")
    assert 604.152162 == pytest.approx(code.span_s, abs=1e-6)
    assert 1499 == code.requests
