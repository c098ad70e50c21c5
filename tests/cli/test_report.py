"""`oasis-sim report` and `plan --report`: formats, places, and results that are damaged."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from oasis_sim.cli.main import main
from oasis_sim.report.directory import write_run
from oasis_sim.trace import save_trace
from tests.page_reader import read_page, tables_of
from tests.strategies import make_trace

SIZES = ["--budget", "64", "--context", "1000", "--output-tokens", "20", "--trace", "small.npz"]


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a directory that holds a small trace."""
    monkeypatch.chdir(tmp_path)
    save_trace(make_trace(1, block_tokens=16, prompt=300, stored=12), tmp_path / "small.npz")
    return tmp_path


@pytest.fixture
def run(beside: Path) -> Path:
    """Return the directory of a small run."""
    command = ["run", *SIZES, "--requests", "4", "--concurrency", "2", "--out", "a run", "--quiet"]
    assert main(command) == 0
    return beside / "a run"


def test_a_run_becomes_a_page(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`report DIR` writes DIR-report.html; the same run gives the same bytes, under any name."""
    capsys.readouterr()
    assert main(["report", "a run"]) == 0
    shown = capsys.readouterr()
    assert ("", "report: a run-report.html\n") == (shown.out, shown.err)
    assert main(["report", "a run", "--out", "again.html"]) == 0
    content = Path("a run-report.html").read_bytes()
    assert content == Path("again.html").read_bytes()
    titles = [each.content() for each in read_page(content.decode()).all("h2")]
    assert "Where the time goes" in titles
    assert "Inputs and how to repeat this" in titles


def test_each_source_has_a_page_of_its_own(run: Path) -> None:
    """Two runs are reported one after the other, and may be made again where they lie."""
    shutil.copytree(run, "other")
    assert main(["report", "a run", "--quiet"]) == 0
    assert main(["report", str(run.parent / "other"), "--quiet"]) == 0
    os.chdir("other")
    assert main(["report", ".", "--quiet", "--out", "../third.html"]) == 0
    os.chdir("..")
    pages = [
        Path(f"{name}.html").read_bytes() for name in ("a run-report", "other-report", "third")
    ]
    assert len(set(pages)) == 1
    command = ["run", *SIZES, "--requests", "4", "--concurrency", "2", "--out", "a run", "--quiet"]
    assert main([*command, "--force"]) == 0


def test_a_disaggregated_run_counts_the_gpus_of_all_nodes(beside: Path) -> None:
    """Title and answer name prefill and decode nodes; rates per GPU are over all of them."""
    command = ["run", *SIZES, "--requests", "4", "--rate", "50", "--disaggregated", "1:2"]
    assert main([*command, "--tp", "2", "--out", "pd", "--quiet"]) == 0
    assert main(["report", "pd", "--quiet", "--out", "page.md"]) == 0
    text = Path("page.md").read_text(encoding="utf-8")
    assert "6 x h100 (1 prefill node and 2 decode nodes of tp 2): " in text
    speed = json.loads(Path("pd/summary.json").read_text())["throughput"]
    assert speed["output_tokens_per_s_per_gpu"] == pytest.approx(speed["output_tokens_per_s"] / 6)


@pytest.mark.parametrize(("kind", "start"), [("md", "# Run: "), ("csv", "table,row,column,value")])
def test_text_formats_go_to_standard_output(
    run: Path, capsys: pytest.CaptureFixture[str], kind: str, start: str
) -> None:
    """Markdown and CSV can be piped; with --out the suffix says which."""
    capsys.readouterr()
    assert main(["report", "a run", "--format", kind]) == 0
    text = capsys.readouterr().out
    assert text.startswith(start)
    assert main(["report", "a run", "--out", f"report.{kind}"]) == 0
    assert text == Path(f"report.{kind}").read_text(encoding="utf-8")


def test_an_existing_file_is_kept(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is overwritten without --force, and nothing is written into nowhere."""
    Path("a run-report.html").write_text("mine", encoding="utf-8")
    assert main(["report", "a run"]) == 2
    assert "--force" in capsys.readouterr().err
    assert "mine" == Path("a run-report.html").read_text(encoding="utf-8")
    assert main(["report", "a run", "--force", "--quiet"]) == 0
    assert main(["report", "a run", "--out", "no/such/place.html"]) == 3
    assert main(["report", "a run", "--out", "report.docx"]) == 2


def test_a_sweep_is_reported_also_when_it_is_not_finished(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All points are in the table; a shard alone is marked as partial."""
    grid = ["--vary", "scheme=on-demand,oasis", "--vary", "concurrency=1..4x2"]
    command = ["sweep", *grid, *SIZES]
    command += ["--workers", "1", "--quiet", "--out", "s"]
    assert main([*command, "--shard", "1/2"]) == 0
    capsys.readouterr()
    assert main(["report", "s", "--format", "md"]) == 0
    assert "PARTIAL: 3 of 6 points" in capsys.readouterr().out
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "x: tokens/s per user (1 / mean TPOT)\n  A oasis\n  B on-demand\n" in shown
    assert main(["report", "s", "--format", "csv"]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    points = {row[1] for row in rows if row[0] == "points"}
    results = json.loads(Path(next(Path("s/runs").glob("*/summary.json"))).read_text())
    rate = results["throughput"]["output_tokens_per_s_per_gpu"]
    assert 6 == len(points)
    assert str(rate) in {cell for row in rows for cell in row}


@pytest.fixture
def plan(beside: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Return a small plan as JSON, beside the report that it wrote."""
    load = [*SIZES, "--requests", "40", "--rate", "100", "--tp", "1", "--workers", "1", "--quiet"]
    wanted = ["--slo", "ttft_p95=150ms", "--report", "plan.html", "--format", "json"]
    capsys.readouterr()
    assert main(["plan", *load, *wanted]) == 0
    Path("plan.json").write_text(capsys.readouterr().out, encoding="utf-8")
    return beside / "plan.json"


def test_a_kept_plan_gives_the_page_that_it_wrote(plan: Path) -> None:
    """`plan --report` and `report PLAN.json` are the same bytes; a directory of it will do."""
    assert main(["report", "plan.json", "--quiet"]) == 0
    assert Path("plan.html").read_bytes() == Path("plan-report.html").read_bytes()
    assert main(["report", ".", "--out", "third.html", "--quiet"]) == 0
    assert Path("plan.html").read_bytes() == Path("third.html").read_bytes()


def test_places_of_a_plan_are_checked_before_the_work(beside: Path) -> None:
    """An unknown suffix, a missing folder, an existing file: at once."""
    Path("there.html").write_text("mine", encoding="utf-8")
    load = ["plan", *SIZES, "--rate", "1", "--slo", "ttft_p95=1ms", "--report"]
    assert main([*load, "report.docx"]) == 2
    assert main([*load, "no/such/report.html"]) == 3
    assert main([*load, "there.html"]) == 2


@pytest.mark.parametrize("name", ["nothing", ".", "small.npz"])
def test_what_is_no_result_is_refused(
    beside: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """No such place, a directory of something else, a file that is no plan."""
    assert main(["report", name]) == 3
    assert 1 == capsys.readouterr().err.count("\n")
    assert not list(Path().glob("*-report.html"))


def test_a_damaged_plan_is_refused_whatever_is_missing(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without any one of its keys a plan ends with code 3 and one line, never a page."""
    whole = json.loads(plan.read_text(encoding="utf-8"))
    for key in whole:
        broken = {name: value for name, value in whole.items() if name != key}
        plan.write_text(json.dumps(broken), encoding="utf-8")
        code = main(["report", "plan.json", "--quiet"])
        error = capsys.readouterr().err
        assert (code, error.count("\n")) in {(3, 1), (0, 0)}, key
        if not code:
            assert key in ("targets", "reach")
            Path("plan-report.html").unlink()


@pytest.mark.parametrize(
    ("file", "kind", "scheme"),
    [
        ("mooncake_conversation_head400.jsonl", "mooncake", "dense"),
        ("azure_code_head1500.csv", "azure", "dense"),
    ],
)
def test_a_recorded_workload_goes_to_a_report_in_one_command(
    beside: Path, file: str, kind: str, scheme: str
) -> None:
    """The head of a real request file; what is read of it stands in the report."""
    shared = os.environ.get("OASIS_SHARED_DIR")
    if shared is None:
        pytest.skip("OASIS_SHARED_DIR is not set: no recorded workload")
    workload = str(Path(shared) / "workloads" / file)
    command = ["plan", "--workload", workload, "--workload-format", kind, "--requests", "40"]
    command += ["--scheme", scheme, "--tp", "1", "--slo", "ttft_p95=30s", "--workers", "1"]
    assert main([*command, "--report", "report.html", "--quiet"]) == 0
    page = read_page(Path("report.html").read_text(encoding="utf-8"))
    options = tables_of(page)["inputs.csv"]
    assert ["workload", workload] in options
    assert ["requests", "40"] in options


def test_the_suffix_and_the_format_agree(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Markdown is not written into a page, and `-` is no name of a report."""
    capsys.readouterr()
    assert main(["report", "a run", "--out", "x.html", "--format", "md"]) == 2
    assert "--format md and a name in .html contradict" in capsys.readouterr().err
    assert main(["report", "a run", "--out", "-", "--format", "md"]) == 2
    assert "end the name of a report in .html, .md or .csv" in capsys.readouterr().err
    assert not Path("x.html").exists()
    assert not Path("-").exists()
    assert main(["report", "a run", "--out", "x.md", "--format", "md", "--quiet"]) == 0


@pytest.mark.parametrize(
    ("part", "junk"),
    [
        ("notes", [-1]),
        ("scenario", {"trace": 3}),
        ("throughput", {"output_tokens_per_s": True}),
        ("throughput", {"output_tokens_per_s": "fast"}),
    ],
)
def test_a_summary_of_other_values_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str], part: str, junk: Any
) -> None:
    """Edited and hashed anew, it ends with code 3 and one line, in every format."""
    files = {each.name: each.read_bytes() for each in run.iterdir()}
    del files["manifest.json"], files["run.log"]
    summary = json.loads(files["summary.json"])
    summary[part] = junk if part == "notes" else summary[part] | junk
    files["summary.json"] = json.dumps(summary).encode()
    write_run(Path("edited"), files, "")
    for kind in ("html", "md", "csv"):
        capsys.readouterr()
        code = main(["report", "edited", "--format", kind])
        shown = capsys.readouterr()
        assert (3, "", 1) == (code, shown.out, shown.err.count("\n"))
        assert "internal error" not in shown.err
    assert not list(Path().glob("*-report.html"))


def test_a_run_that_is_not_complete_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a file that the manifest lists, and without the manifest."""
    for name in ("steps.csv", "manifest.json"):
        (run / name).unlink()
        assert main(["report", "a run", "--format", "md"]) == 3
        error = capsys.readouterr().err
        assert name in error
        assert "so the run is not complete; run it again" in error


def test_a_changed_summary_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A report shows what the manifest lists, nothing edited since."""
    summary = run / "summary.json"
    summary.write_text(summary.read_text().replace("1", "2", 1), encoding="utf-8")
    assert main(["report", "a run"]) == 3
    assert "manifest" in capsys.readouterr().err
