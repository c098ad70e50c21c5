"""Axes of pictures: every ratio has its label where there is room, and labels stay apart."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytest.importorskip("matplotlib", reason="pictures need the extra 'plot'")

from matplotlib.figure import Figure

from oasis_sim.report.plot_axes import magnitude_axis, ratio_axis, thin_labels
from tests.drawn_texts import faults, shown

RATIOS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.3, 1.0)


def drawn(ratios: Sequence[float], decades: int = 5) -> Figure:
    """Return a figure with one line over fetch ratios that falls over some decades."""
    figure = Figure(figsize=(4.0, 3.0), layout="constrained")
    axes = figure.subplots()
    last = len(ratios) - 1
    axes.plot(ratios, [10 ** (-decades * index / last) for index in range(len(ratios))])
    ratio_axis(axes, ratios)
    magnitude_axis(axes)
    return figure


def labels(figure: Figure) -> list[str]:
    """Return what the drawn texts say."""
    return [text.get_text() for text in shown(figure)]


def test_the_published_ratios_have_room() -> None:
    """Each has its label, in a picture of a column's width too."""
    figure = drawn(RATIOS)
    thin_labels(figure)
    assert {"0", "0.01", "0.02", "0.05", "0.1", "0.3", "all"} <= set(labels(figure))
    assert [] == faults(figure)


def test_close_ratios_lose_labels() -> None:
    """Labels would lie over each other: some go, those of the ends stay."""
    figure = drawn([0.0, 0.01, *(0.1 + 0.01 * step for step in range(9)), 1.0])
    assert any(" over " in fault for fault in faults(figure))
    thin_labels(figure)
    assert [] == faults(figure)
    assert {"0", "all"} <= set(labels(figure))


@pytest.mark.parametrize("decades", range(1, 7))
def test_numbers_of_several_magnitudes(decades: int) -> None:
    """They are plain numbers with room for each, in fine steps where the range is small."""
    figure = drawn(RATIOS, decades)
    assert [] == faults(figure)
    said = set(labels(figure))
    assert "0.1" in said
    assert (decades < 3) == ("0.2" in said)
