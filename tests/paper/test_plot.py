"""Comparisons as pictures: every number is drawn, the bytes are the same each time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oasis_sim.cli.main import main
from oasis_sim.hardware import load_profile
from oasis_sim.paper import (
    fig1,
    fig2,
    fig4,
    fig6,
    fig11,
    fig12,
    fig13,
    fig14,
    fig15,
    nodes,
    table2,
)
from oasis_sim.paper.comparison import Comparison, Row, beside
from oasis_sim.paper.plot import DRAWN, draw, figure_of
from oasis_sim.paper.published import load_published
from oasis_sim.paper.reproduce import REPRODUCTIONS
from oasis_sim.paper.setup import Setup
from oasis_sim.report.plotfile import save_figure
from tests.drawn_texts import faults
from tests.engine.scenarios import random_trace

KEYS: dict[str, list[dict[str, Any]]] = {
    fig12.NAME: [{"request_rate": r, "system": s} for r in fig12.RATES for s in fig12.SYSTEMS],
    fig14.NAME: [{"fetch_ratio": ratio} for ratio in fig14.RATIOS],
    fig15.NAME: [
        {"hit_fraction": h, "network_gbit_per_s": g} for h in fig15.HITS for g in fig15.GBITS
    ],
}
UNITS = {each.NAME: each.UNITS for each in (fig12, fig14, fig15)}


def made_up(name: str) -> Comparison:
    """Return a comparison with the rows of a table or figure and numbers without meaning."""
    rows: list[Row] = []
    if name == table2.NAME:
        for ratio in table2.RATIOS:
            values = dict.fromkeys(table2.UNITS, 7.0 + ratio)
            keys = {"fetch_ratio": ratio}
            rows += beside(load_published(), name, keys, table2.UNITS, values)
    elif name == fig11.NAME:
        for point in fig11.points(fig11.CONTEXT_TOKENS):
            values = dict.fromkeys(fig11.UNITS, 5.0 + point.concurrency)
            rows += beside(load_published(), name, point.keys, fig11.UNITS, values)
    elif name in KEYS:
        for context in nodes.CONTEXTS:
            for number, keys in enumerate(KEYS[name]):
                values = dict.fromkeys(UNITS[name], 3.0 + number)
                at = {"context_tokens": context, **keys}
                rows += beside(load_published(), name, at, UNITS[name], values)
    else:
        for model in fig13.MODELS:
            for budget in fig13.BUDGETS:
                at: dict[str, str | float] = {"model": model, "budget_blocks": budget}
                rows.append(Row(at, "output_tokens_per_s", "tok/s", None, 100.0 + budget))
    return Comparison(name, f"{name} $ title", tuple(rows))


def comparison(name: str) -> Comparison:
    """Return a small comparison of each kind."""
    profile, published = load_profile("h100"), load_published()
    setup = Setup(profile, "vllm", (random_trace(blocks=256),))
    if name == fig1.NAME:
        return fig1.compare(profile)
    if name == fig2.NAME:
        return fig2.compare(profile, published)
    if name == fig4.NAME:
        return fig4.compare(setup, published)
    return fig6.compare(setup, published) if name == fig6.NAME else made_up(name)


def drawn_values(found: Comparison) -> set[float]:
    """Return the heights of every line and bar of a figure."""
    values: set[float] = set()
    for axes in figure_of(found).axes:
        for line in axes.lines:
            values |= {float(value) for value in line.get_ydata()}
        values |= {float(patch.get_height()) for patch in axes.patches}
    return values


def test_every_reproduction_can_be_drawn() -> None:
    """No table or figure is without a picture."""
    assert set(REPRODUCTIONS) == set(DRAWN)


@pytest.mark.parametrize("name", DRAWN)
def test_the_same_comparison_gives_the_same_bytes(tmp_path: Path, name: str) -> None:
    """Drawn twice, the files are equal, and the picture says which figure it is."""
    found = comparison(name)
    draw(found, tmp_path / "one.svg")
    draw(found, tmp_path / "two.svg")
    content = (tmp_path / "one.svg").read_bytes()
    assert content == (tmp_path / "two.svg").read_bytes()
    assert found.title.split(":")[0].encode() in content


@pytest.mark.parametrize("name", DRAWN)
def test_texts_stay_apart(tmp_path: Path, name: str) -> None:
    """No label, name or title lies over another or leaves the picture."""
    figure = figure_of(comparison(name))
    save_figure(figure, tmp_path / "a.svg")
    assert [] == faults(figure)


@pytest.mark.parametrize("name", [fig2.NAME, table2.NAME, fig11.NAME, fig13.NAME])
def test_every_number_is_drawn(name: str) -> None:
    """Simulated and published values are heights of the picture."""
    found = comparison(name)
    expected: set[Any] = {row.simulated for row in found.rows}
    expected |= {row.published for row in found.rows}
    assert {value for value in expected if value is not None} <= drawn_values(found)


def test_layers_are_drawn_where_they_are_recorded() -> None:
    """Recorded layers are points, empty ones are not."""
    found = comparison(fig4.NAME)
    layers = {
        row.simulated
        for row in found.rows
        if isinstance(row.keys["layer"], int) and row.simulated is not None
    }
    assert len(layers) == 3
    assert layers == drawn_values(found)


@pytest.mark.parametrize("suffix", ["png", "pdf"])
def test_other_formats_are_repeatable(tmp_path: Path, suffix: str) -> None:
    """PNG and PDF hold no date either."""
    found = comparison(fig13.NAME)
    draw(found, tmp_path / f"one.{suffix}")
    draw(found, tmp_path / f"two.{suffix}")
    one, two = (tmp_path / f"{name}.{suffix}" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The picture is written beside the table, and only replaced when asked."""
    monkeypatch.chdir(tmp_path)
    assert main(["paper", "fig2", "--plot", "a.svg"]) == 0
    shown = capsys.readouterr()
    assert "Figure 2" in shown.out
    assert shown.err == "plot: a.svg\n"
    first = (tmp_path / "a.svg").read_bytes()
    assert main(["paper", "fig2", "--plot", "a.svg"]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["paper", "fig2", "--plot", "a.svg", "--force", "--quiet"]) == 0
    assert (tmp_path / "a.svg").read_bytes() == first


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["fig2", "--plot", "a.gif"], 2, "unknown picture format"),
        (["fig2", "--plot", "nowhere/a.svg"], 3, "no place for a file"),
        (["all", "--plot", "a.svg"], 2, "name it instead of all"),
    ],
)
def test_refusals_come_before_the_work(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    """A picture that cannot be written is refused in one line, and nothing is there."""
    monkeypatch.chdir(tmp_path)
    assert main(["paper", *arguments]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert message in shown.err
    assert list(tmp_path.iterdir()) == []
