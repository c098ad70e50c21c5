"""Reports: one page that asks for nothing, the numbers of the JSON, names shown as text."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from oasis_sim.cli.main import main
from oasis_sim.metrics import summarise
from oasis_sim.report.csvfile import flatten
from oasis_sim.report.page.document import Bars, Report
from oasis_sim.report.page.html import page
from oasis_sim.report.page.markdown import markdown
from oasis_sim.report.page.numbers import report_csv
from oasis_sim.report.page.of_plan import plan_report
from oasis_sim.report.page.of_run import run_report
from oasis_sim.report.page.of_sweep import SweepPoint, sweep_report
from oasis_sim.report.page.svg_bars import draw_bars
from oasis_sim.report.timeline import write_timeline
from oasis_sim.trace import save_trace
from tests.factories import tiny_result
from tests.page_reader import Element, read_page, tables_of
from tests.strategies import hostile_names, make_trace

SIZES = ["--budget", "64", "--context", "1000", "--output-tokens", "20", "--requests", "60"]
LOAD = [*SIZES, "--trace", "small.npz", "--rate", "150", "--tp", "1", "--gpu", "h100,h200"]
SLO = ["--slo", "ttft_p95=150ms,tpot_p99=25ms"]
HOSTILE = "<script>alert(1)</script> [red]x[/red] \x1b[31m\u202e`|*=1+1"
MEGABYTE = 1_000_000
MARKDOWN_TAGS = {
    *("h1", "h2", "h3", "p", "strong", "blockquote", "details", "summary", "pre", "code"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}


@pytest.fixture(scope="module")
def plan_json(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the JSON of a small plan with what its report shows."""
    place = tmp_path_factory.mktemp("plan")
    save_trace(make_trace(1, block_tokens=16, prompt=300, stored=12), place / "small.npz")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        (place / "p.yaml").write_text("currency: EUR\ngpu_hour: {h100: 2.5, h200: 3.5}\n")
        out = io.StringIO()
        patch.setattr("sys.stdout", out)
        command = ["plan", *LOAD, *SLO, "--workers", "1", "--quiet", "--format", "json"]
        assert main([*command, "--price-file", "p.yaml", "--report", "report.html"]) == 0
    found: dict[str, Any] = json.loads(out.getvalue())
    assert (place / "report.html").read_text(encoding="utf-8") == page(plan_report(found))
    return found


def a_run(name: str = "tiny") -> Report:
    """Return the report of the factory's run; its names may be replaced."""
    result = tiny_result()
    summary = renamed(summarise(result), name)
    return run_report(summary, f"profile: {name}\n", json.loads(write_timeline(result)))


def a_sweep(name: str = "tiny") -> Report:
    """Return the report of a sweep of four points, one of them refused."""
    points = []
    for scheme in ("dense", name):
        for concurrency in (1, 2):
            summary: dict[str, Any] = json.loads(json.dumps(summarise(tiny_result())))
            summary["throughput"]["output_tokens_per_s_per_gpu"] *= concurrency
            summary["latency"]["tpot_ms"]["mean"] *= concurrency
            labels = {"scheme": scheme, "concurrency": str(concurrency)}
            points.append(SweepPoint(labels, summary, "done"))
    points[-1] = SweepPoint(points[-1].labels, None, "refused")
    return sweep_report(points, f"base: {{trace: {name}}}\n")


def renamed(value: Any, name: str) -> Any:
    """Return a summary or plan whose free names are another."""
    keys = ("profile", "scheme", "model", "name", "engine", "sentence", "command", "binding")
    if isinstance(value, dict):
        return {
            key: name if key in keys and isinstance(item, str) else renamed(item, name)
            for key, item in value.items()
        }
    return [renamed(item, name) for item in value] if isinstance(value, list) else value


@pytest.fixture(params=["run", "sweep", "plan"])
def report(request: pytest.FixtureRequest, plan_json: dict[str, Any]) -> Report:
    """Return each kind of report."""
    makers: dict[str, Callable[[], Report]] = {
        "run": a_run,
        "sweep": a_sweep,
        "plan": lambda: plan_report(plan_json),
    }
    return makers[request.param]()


def whole(report: Report) -> Element:
    """Return the page of a report as it is read."""
    return read_page(page(report))


def test_a_page_asks_for_nothing_and_runs_nothing(report: Report) -> None:
    """No script, no handler, no address but places in the page and data in it."""
    text = page(report)
    found = read_page(text)
    assert len(text.encode()) < MEGABYTE
    assert [] == found.all("script")
    for element in found.all():
        assert not any(name.startswith("on") for name in element.attributes)
        for name in ("href", "src", "action", "data", "srcset", "xlink:href"):
            assert re.match("#|data:", element.attributes.get(name) or "#")
    assert "@import" not in text
    assert not re.search(r"url\((?!#fill\d\))", text)
    policy = [e for e in found.all("meta") if e.attributes.get("http-equiv")]
    assert "default-src 'none'" in (policy[0].attributes["content"] or "")


def test_a_page_can_be_read_without_seeing_it(report: Report) -> None:
    """Landmarks, one title, headings in order, captions, scopes, and words for each figure."""
    found = whole(report)
    assert "en" == found.all("html")[0].attributes["lang"]
    assert 1 == len(found.all("h1")) == len(found.all("main")) == len(found.all("nav"))
    levels = [int(each.tag[1]) for each in found.all() if re.fullmatch("h[1-6]", each.tag)]
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    for table in found.all("table"):
        assert table.children[0].tag == "caption"
        assert table.children[0].content()
        assert all(each.attributes["scope"] in ("col", "row") for each in table.all("th"))
    drawings = [each for each in found.all("svg") if "aria-hidden" not in each.attributes]
    assert drawings
    for drawing in drawings:
        assert "img" == drawing.attributes["role"]
        assert len(drawing.attributes["aria-label"] or "") > 20
    assert all(each.all("h3") and each.all("figcaption") for each in found.all("figure"))


def test_links_lead_somewhere(report: Report) -> None:
    """The first link skips to the answer; every link's place is there once."""
    found = whole(report)
    places = [each.attributes["id"] for each in found.all() if each.attributes.get("id")]
    assert len(places) == len(set(places))
    links = [each.attributes["href"] or "" for each in found.all("a")]
    assert "#main" == links[0]
    assert all(link[1:] in places for link in links if link.startswith("#"))
    named = [
        each.attributes[key]
        for each in found.all()
        for key in ("aria-labelledby",)
        if each.attributes.get(key)
    ]
    assert set(named) <= set(places)


def test_landmarks_have_names_of_their_own(report: Report) -> None:
    """No two sections and tables that scroll are called the same."""
    found = whole(report)
    titles = {each.attributes.get("id"): each.content() for each in found.all("h2")}
    names = [titles[each.attributes["aria-labelledby"]] for each in found.all("section")]
    names += [
        each.attributes["aria-label"] or ""
        for each in found.all()
        if each.attributes.get("role") == "region"
    ]
    assert len(names) == len(set(names))


def test_the_answer_comes_first(report: Report) -> None:
    """One sentence stands before everything else, then what it must not be read without."""
    section = whole(report).all("section")[0]
    first, *cautions = section.all("p")
    assert report.answer == first.content()
    assert first.content().endswith(".")
    assert list(report.cautions) == [each.content() for each in cautions]


def test_what_is_synthetic_says_so() -> None:
    """Beside the answer, not at the end."""
    for report in (a_run(), a_sweep()):
        assert any("SYNTHETIC" in each for each in report.cautions)
        assert markdown(report).index("SYNTHETIC") < markdown(report).index("\n## ")


def test_the_numbers_are_those_of_the_json(report: Report) -> None:
    """Each table of the page is in its CSV, and in that of the whole report, value for value."""
    found = tables_of(whole(report))
    lines = list(csv.DictReader(io.StringIO(report_csv(report))))
    for section in report.sections:
        for table in section.all_tables():
            rows = found[f"{table.name}.csv"]
            assert len(table.rows) == len(rows) - 1
            cells = [cell for row in rows[1:] for cell in row[1:]]
            assert cells == [line["value"] for line in lines if line["table"] == table.name]


def test_a_run_shows_every_number_of_its_summary() -> None:
    """The last table is summary.json, path by path."""
    summary = summarise(tiny_result())
    rows = tables_of(whole(a_run()))["summary.csv"][1:]
    assert [path for path, _ in flatten(summary)] == [row[0] for row in rows]
    numbers = {path: value for path, value in flatten(summary) if isinstance(value, float)}
    shown = {row[0]: row[1] for row in rows}
    assert numbers
    assert all(float(shown[path]) == value for path, value in numbers.items())


def test_long_names_and_texts_can_break() -> None:
    """Of every number on a narrow screen: paths between their parts, texts among numbers."""
    shown = read_page(page(a_run()))
    paths = {each.content(): each for each in shown.all("th") if "." in each.content()}
    assert 3 == len(paths["tiers.hbm.peak_bytes"].all("wbr"))
    (note,) = [each for each in shown.all("td") if each.content().startswith("proxies read off")]
    assert "n words" == note.attributes["class"]


def test_a_plan_shows_what_its_json_says(plan_json: dict[str, Any]) -> None:
    """Fleets, targets, curves, ratios and changes: the values of the JSON, none of its own."""
    tables = tables_of(whole(plan_report(plan_json)))
    fleets = plan_json["fleets"]
    for row, fleet in zip(tables["fleets.csv"][1:], fleets, strict=True):
        assert [str(fleet["gpus"]), str(fleet["replicas"]), str(fleet["tp"])] == row[1:4]
        assert float(row[8]) * 2**30 == fleet["hbm_peak_bytes"]
        assert float(row[-1]) == fleet["cost_per_million_output_tokens"]
    reached = [each["value_ms"] for fleet in fleets for each in fleet["targets"]]
    assert reached == [float(row[1]) for row in tables["targets.csv"][1:]]
    points = [at for curve in plan_json["evidence"]["curves"] for at in curve["points"]]
    expected = [
        (at["output_tokens_per_s_per_user"], at["output_tokens_per_s_per_gpu"])
        for at in points
        if at["refusal"] is None
    ]
    assert expected == [(float(row[3]), float(row[4])) for row in tables["pareto.csv"][1:]]
    ratios = plan_json["evidence"]["fetch_ratios"]["points"]
    fetched = [float(row[2]) * 1e6 for row in tables["pcie_by_ratio.csv"][1:]]
    assert fetched == pytest.approx([at["h2d_bytes_per_step"] for at in ratios])
    changed = [each["gpus"] for each in plan_json["sensitivity"]]
    shown = [row[1] for row in tables["sensitivity.csv"][2:]]
    assert changed == [int(each) if each else None for each in shown]


def test_a_plan_says_how_to_repeat_it(plan_json: dict[str, Any]) -> None:
    """The command holds what was given, and nothing that changes no result."""
    assert plan_json["command"].startswith("oasis-sim plan --gpu h100,h200 ")
    assert "--rate 150.0" in plan_json["command"]
    assert "--workers" not in plan_json["command"]
    codes = [each.content() for each in whole(plan_report(plan_json)).all("code")]
    assert [f"{plan_json['command']} --report report.html"] == codes


@pytest.mark.parametrize("make", [a_run, a_sweep])
@settings(max_examples=10)
@given(name=st.just(HOSTILE) | hostile_names())
def test_hostile_names_are_text(make: Callable[[str], Report], name: str) -> None:
    """Whatever a name holds, no element comes of it, and no cell is a formula."""
    check_hostile(make(name))


def test_hostile_names_in_a_plan_are_text(plan_json: dict[str, Any]) -> None:
    """The same for all names and sentences of a plan."""
    report = plan_report(renamed(plan_json, HOSTILE))
    check_hostile(report)
    assert "&lt;script&gt;alert(1)" in page(report)


def check_hostile(report: Report) -> None:
    """Check the three formats of a report."""
    text = page(report)
    assert [] == read_page(text).all("script")
    assert all(each.isprintable() or each == "\n" for each in text)
    shown = markdown(report)
    rendered = MarkdownIt("commonmark").enable("table").render(shown)
    tags = {each.tag for each in read_page(rendered).all()}
    assert tags <= MARKDOWN_TAGS
    assert all(each.isprintable() or each == "\n" for each in shown)
    for row in csv.reader(io.StringIO(report_csv(report))):
        assert not any(re.match(r"\s*[=+@]", cell) for cell in row)


def test_no_fleet_is_an_answer_too(plan_json: dict[str, Any]) -> None:
    """A plan that found nothing says so and shows no figure of a recommended card."""
    nothing = {**plan_json, "fleets": [], "evidence": None, "sensitivity": []}
    nothing["impossible"] = [{"profile": "h100", "scheme": "dense", "tried": ["tp 1: missed"]}]
    found = whole(plan_report(nothing))
    assert "No fleet meets the targets" in found.all("section")[0].content()
    assert "tp 1: missed" in found.content()


def test_bars_of_a_sweep_can_be_told_apart() -> None:
    """Points are named by what differs among them; the key has only what is drawn."""
    found = [
        figure
        for section in a_sweep().sections
        if section.title == "Memory by tier"
        for figure in section.figures
    ]
    assert {"HBM per GPU", "Host memory for KV per GPU"} == {figure.title for figure in found}
    for figure in found:
        assert isinstance(figure.drawing, Bars)
        names = [bar.label for bar in figure.drawing.bars]
        assert len(set(names)) == len(names) > 1
        assert all(name.startswith("concurrency ") for name in names)
        drawn = draw_bars(figure.drawing, "")
        assert ("weights" in str(drawn)) == (figure.title == "HBM per GPU")


def test_an_empty_sweep_is_a_report() -> None:
    """Nothing simulated yet: said in the answer, marked as partial."""
    report = sweep_report([SweepPoint({"scheme": "oasis"}, None, "missing")], "")
    assert "none has a result" in report.answer
    assert any("PARTIAL" in each for each in report.cautions)
    assert read_page(page(report))


def test_the_style_serves_dark_light_and_print() -> None:
    """Both colour schemes and paper have their colours."""
    style = (Path(__file__).parents[2] / "oasis_sim/report/page/style.css").read_text("utf-8")
    assert "prefers-color-scheme:dark" in style
    assert "@media print" in style
