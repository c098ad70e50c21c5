"""What the planner reads: loud about synthetic data, quiet about markup."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import numpy as np
import pytest

from oasis_sim.engine.result import BOUNDS, RunResult
from oasis_sim.metrics import summarise
from oasis_sim.report.csvfile import flatten, write_rows, write_summary
from oasis_sim.report.numbers import (
    counted,
    gibibytes,
    gigabytes,
    milliseconds,
    number,
    percent,
)
from oasis_sim.report.table import print_rows, print_view
from oasis_sim.report.view import view_of
from oasis_sim.scheme import load_scheme, with_options
from oasis_sim.text import plain
from oasis_sim.units import PS_PER_S
from oasis_sim.workload import Workload
from tests.factories import (
    STEP_PS,
    tiny_requests,
    tiny_result,
    tiny_scenario,
    tiny_steps,
    tiny_trace,
)

HOSTILE = "[red]x[/red] \x1b[31m\x07\u202e=cmd"


def text_of(result: RunResult) -> str:
    """Return the table of a run as it is printed off a terminal."""
    stream = io.StringIO()
    print_view(view_of(summarise(result)), stream)
    return stream.getvalue()


def test_the_table_answers_what_a_planner_asks() -> None:
    """Throughput, TPOT, batch, PCIe against its limit, bound, memory and proxies are there."""
    text = text_of(tiny_result())
    for piece in (
        "33.33 tokens/s",
        "TPOT",
        "Running batch",
        "Host to GPU",
        "GB/s by sm_gather (nominal 64)",
        "compute 75.0 %",
        "weights 14.9 GiB",
        "of the time, prefill 25.0 %",
        "Attention mass (proxy)",
        "two requests only",
    ):
        assert piece in " ".join(text.split()), piece


def test_a_synthetic_trace_is_announced() -> None:
    """Nobody may take a generated trace for a recording."""
    assert "SYNTHETIC" in text_of(tiny_result())


def test_a_recorded_trace_is_not_called_synthetic() -> None:
    """The warning is for generated traces only."""
    recorded = tiny_scenario(traces=(tiny_trace("recorded"),))
    assert "SYNTHETIC" not in text_of(tiny_result(scenario=recorded))


def test_quality_is_called_a_proxy_and_never_accuracy() -> None:
    """Each line about quality carries the word proxy."""
    summary = summarise(tiny_result())
    section = next(s for s in view_of(summary).sections if "Quality" in s.title)
    assert section.rows
    assert all("proxy" in row.label for row in section.rows)


def test_p99_of_few_requests_is_marked() -> None:
    """Two requests have no p99 worth the name, and the table says why."""
    text = text_of(tiny_result())
    assert "p99 60 ms*" in text
    assert "459 are needed" in text


def test_hostile_names_are_text() -> None:
    """Markup, escapes and direction overrides of a name are shown, not obeyed."""
    model = replace(tiny_scenario().model, name=HOSTILE)
    trace = tiny_trace("synthetic", HOSTILE)
    text = text_of(tiny_result(scenario=tiny_scenario(model=model, traces=(trace,))))
    assert "[red]x[/red]" in text.replace("\n", "")
    assert not {"\x1b", "\x07", "\u202e"} & set(text)


class Terminal(io.StringIO):
    """Stand for a terminal that keeps what is printed."""

    def isatty(self) -> bool:
        """Say that a person is watching."""
        return True


@pytest.mark.parametrize(("no_color", "escapes"), [("", True), ("1", False)])
def test_colour_is_for_terminals_that_want_it(
    no_color: str, escapes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NO_COLOR turns every escape sequence off, on a terminal too."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", no_color)
    stream = Terminal()
    print_view(view_of(summarise(tiny_result())), stream)
    assert ("\x1b[" in stream.getvalue()) is escapes


def test_long_times_are_in_seconds() -> None:
    """Nobody reads 159,702 ms."""
    assert [milliseconds(value) for value in (None, 0.5, 62.6, 9_999.4, 159_702.0)] == [
        "-",
        "0.500 ms",
        "62.60 ms",
        "9,999 ms",
        "159.7 s",
    ]


def test_a_dense_run_has_no_working_set_and_no_proxies() -> None:
    """Sections with nothing to say are left out."""
    result = tiny_result(scenario=tiny_scenario(scheme=load_scheme("dense"), traces=()))
    steps = replace(result.steps, sparse_rows=np.zeros(4, dtype=np.int32))
    text = text_of(replace(result, steps=steps))
    assert "Working set" not in text
    assert "no trace" in text


def test_requests_that_did_not_finish_are_told() -> None:
    """Rejected and waiting requests are counted where one looks for them."""
    text = text_of(tiny_result(requests=tiny_requests(status=np.array([1, 3], dtype=np.uint8))))
    assert "0 of 2" in text
    assert "1 rejected, 1 waiting at the end" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (0.04321, "0.0432"),
        (0.5, "0.500"),
        (4.839, "4.84"),
        (127.63, "127.6"),
        (2083.4, "2,083"),
    ],
)
def test_numbers_keep_about_four_digits(value: float | None, text: str) -> None:
    """Figures are as precise as they are useful."""
    assert number(value) == text


def test_units_of_sizes_and_shares() -> None:
    """What moves is in GB, what lies in memory in GiB, shares per cent, nothing is a dash."""
    assert gigabytes(65_500_000_000) == "65.5 GB"
    assert gibibytes(65_500_000_000) == "61.0 GiB"
    assert percent(0.5312) == "53.1 %"
    assert (gigabytes(None), gibibytes(None), percent(None)) == ("-", "-", "-")


def test_one_of_a_thing_takes_no_s() -> None:
    """Counts read as language."""
    assert [counted(value, "request") for value in (0, 1, 2_048)] == [
        "0 requests",
        "1 request",
        "2,048 requests",
    ]


def lines_of(result: RunResult) -> dict[str, str]:
    """Return value and detail of each row of the table by its label."""
    sections = view_of(summarise(result)).sections
    return {row.label: f"{row.value} | {row.detail}" for part in sections for row in part.rows}


def test_the_roofline_stands_beside_the_rate_that_it_bounds() -> None:
    """The bound covers prefill too: decode alone, which may exceed it, has a row of its own."""
    found = lines_of(tiny_result())
    assert found["Throughput"] == (
        "33.33 tokens/s | roofline of the whole run 66 tokens/s; 8.33 requests/s"
    )
    assert found["Decode alone"] == "33.33 tokens/s | in steps without prefill"


def test_what_bounds_the_run_is_a_share_of_time() -> None:
    """A step three times as long counts three times: half of the time, a quarter of the steps."""
    steps = tiny_steps()
    end = steps.end_ps.copy()
    end[-1] += 2 * STEP_PS
    bound = steps.bound.copy()
    bound[-1] = BOUNDS.index("transfer")
    found = lines_of(tiny_result(steps=replace(steps, end_ps=end, bound=bound)))
    assert found["Steps bound by"].startswith("transfer 50.0 % | of the time, compute 33.3 %, ")


def test_the_limit_of_the_batch_is_named() -> None:
    """Every limit is there, the one that held up longest by name."""
    assert lines_of(tiny_result())["Batch limited by"] == (
        "requests | host memory: 100 fit; HBM pool: 27 fit; concurrency: 2; 2 requests in all"
    )


def test_memory_is_in_gib_and_links_in_gb() -> None:
    """54e9 bytes of KV pool are 50.3 GiB, as a driver would say."""
    found = lines_of(tiny_result())
    assert found["KV pool"].startswith("50.3 GiB | usable 67.1 GiB - weights 14.9 GiB")
    assert found["Host to GPU"].endswith("14.2 MB per step")


def test_prefill_is_said_to_need_the_whole_prompt() -> None:
    """Why HBM can be full although 108 working sets would fit; not so for a layer at a time."""
    assert "prefill needs the whole prompt in HBM" in lines_of(tiny_result())["Request, dense"]
    layerwise = with_options(load_scheme("oasis"), offload_at="layer")
    shown = lines_of(tiny_result(scenario=tiny_scenario(scheme=layerwise)))
    assert "prefill needs" not in shown["Request, dense"]


def test_requests_of_several_lengths_are_said_to_differ() -> None:
    """Mean and longest in the heading, and whose memory the rows are about."""
    load = Workload("made", "csv", [0, 0], [1_000, 9_000], [4, 6])  # type: ignore[arg-type]
    result = tiny_result(scenario=tiny_scenario(workload=load))
    heading = view_of(summarise(result)).heading
    assert "mean context 5,000 (longest 9,000) + 5 (longest 6) tokens" in heading
    assert "the longest request" in lines_of(result)["Request, dense"]
    assert "context 1,000 + 4 tokens" in view_of(summarise(tiny_result())).heading


def test_arrivals_keep_their_rate_beside_a_limit() -> None:
    """Two requests 4 s apart arrive at one per 4 s, with and without --concurrency."""
    due = np.array([0, 4 * PS_PER_S], dtype=np.int64)
    load = replace(tiny_scenario().workload, arrival_ps=due, format="poisson")
    for concurrency, end in ((2, ", at most 2 at once;"), (None, ";")):
        scenario = tiny_scenario(workload=load, concurrency=concurrency)
        heading = view_of(summarise(tiny_result(scenario=scenario))).heading
        assert f"2 requests, arriving over 4 s (0.250 per second){end}" in heading


def test_a_run_that_moved_nothing_tells_why() -> None:
    """KV set aside in host memory is not KV that stays in HBM."""
    nothing = np.zeros(4, dtype=np.int64)
    still = tiny_steps(h2d_bytes=nothing, d2h_bytes=nothing)
    found = lines_of(tiny_result(steps=still))["No transfers"]
    assert found == "0 B | no KV moved in this run; host memory was only set aside for it"
    dense = tiny_scenario(scheme=load_scheme("dense"), traces=())
    still = replace(still, sparse_rows=np.zeros(4, dtype=np.int32))
    found = lines_of(tiny_result(steps=still, scenario=dense))["No transfers"]
    assert found == "0 B | all KV stays in HBM"


@pytest.mark.parametrize("formula", ["=1+1", "+1", "-1+2", "@SUM(A1)", " =1"])
def test_csv_never_holds_a_formula(formula: str) -> None:
    """A spreadsheet shows hostile texts instead of running them."""
    cell = next(csv.reader(io.StringIO(write_rows([[formula]]))))[0]
    assert cell == f"'{formula}"


def test_csv_keeps_negative_numbers_and_quotes_commas() -> None:
    """Only texts are neutralised; numbers and separators stay what they are."""
    assert write_rows([[-1, "a,b", None, True]]) == '-1,"a,b",,true\n'


def test_csv_of_a_summary_names_every_leaf() -> None:
    """Each number of the JSON has its dotted path."""
    summary = summarise(tiny_result())
    rows = list(csv.reader(io.StringIO(write_summary(summary))))
    assert rows[0] == ["metric", "value"]
    assert len(rows) == 1 + len(flatten(summary))
    assert ["latency.tpot_ms.mean", "60.0"] in rows


def test_rows_are_printed_as_columns() -> None:
    """Lists of the catalogue line up under their header."""
    stream = io.StringIO()
    print_rows([("name", "value"), ("[b]x", 1)], stream)
    assert [line.split() for line in stream.getvalue().splitlines()] == [
        ["name", "value"],
        ["[b]x", "1"],
    ]


def test_piped_lists_are_never_folded() -> None:
    """One entry is one line, however long its description."""
    stream = io.StringIO()
    print_rows([("name", "text"), ("a", "word " * 400)], stream)
    assert len(stream.getvalue().splitlines()) == 2


def test_the_rate_per_gpu_is_shown_where_there_are_several() -> None:
    """Eight GPUs share 33.33 tokens/s; a run on one GPU has no such row."""
    assert "Per GPU" not in lines_of(tiny_result())
    found = lines_of(tiny_result(scenario=tiny_scenario(tp=8)))
    assert found["Per GPU"] == "4.17 tokens/s | 8 GPUs in all"


def test_a_wait_on_demand_is_not_for_transfers_alone() -> None:
    """Prediction and selection of the same layer stand before its transfer."""
    found = lines_of(tiny_result(scenario=tiny_scenario(scheme=load_scheme("on-demand"))))
    assert found["Steps bound by"].endswith("per step for prediction, selection and transfer")
    assert lines_of(tiny_result())["Steps bound by"].endswith("per step for transfers")


def test_a_byte_of_a_name_that_is_no_text_is_shown_as_that_byte() -> None:
    """Python holds it as a surrogate, which nobody typed."""
    assert r"caf\xff\x80.html" == plain(b"caf\xff\x80.html".decode("utf-8", "surrogateescape"))
    assert r"\ud800" == plain("\ud800")
