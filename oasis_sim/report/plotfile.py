"""Pictures as files: checked before the long work, the same bytes for the same picture."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from oasis_sim.errors import UsageError
from oasis_sim.fileio import check_writable, printable, write_atomic
from oasis_sim.report.plot_axes import thin_labels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png", ".pdf")
DOTS_PER_INCH = 150
STYLE: Mapping[str, object] = {
    "svg.hashsalt": "oasis-sim",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}
DATES = {"svg": "Date", "pdf": "CreationDate"}


def check_plot(path: Path, *, force: bool) -> None:
    """Raise UsageError or InputError when a picture cannot be drawn, or written where it should."""
    shown = printable(path)
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{shown}: unknown picture format; end the name in {', '.join(SUFFIXES)}")
    check_writable(path)
    if path.exists() and not force:
        raise UsageError(f"{shown}: exists; choose another name or add --force")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("a plot needs matplotlib: pip install -e '.[plot]'")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format of its suffix, without a date in it; its labels stay apart."""
    kind = path.suffix.lower().removeprefix(".")
    metadata = {DATES[kind]: None} if kind in DATES else {}
    thin_labels(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=DOTS_PER_INCH, metadata=metadata)
    write_atomic(path, buffer.getvalue())
