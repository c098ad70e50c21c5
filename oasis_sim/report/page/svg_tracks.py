"""Draw slices of time on parallel tracks; kinds differ by fill, and by a letter where it fits."""

from __future__ import annotations

from oasis_sim.report.page.document import Tracks
from oasis_sim.report.page.markup import Markup, element
from oasis_sim.report.page.scales import scale, tick
from oasis_sim.report.page.svg_parts import WIDTH, drawing, fill, key, label

TRACK_PX, BAR_PX = 44.0, 18.0
LEAST_LETTER_PX = 11.0


def draw_tracks(tracks: Tracks, words: str) -> Markup:
    """Return the drawing: a line for each track, its title above."""
    across = scale([tracks.length], 1.0, WIDTH - 14.0)
    parts = []
    for row, title in enumerate(tracks.tracks):
        top = row * TRACK_PX
        parts.append(label(0, top + 14, title))
        parts.append(element("path", d=f"M1,{top + 38:.1f}H{across.end:.1f}", class_="grid"))
    for span in tracks.spans:
        top = tracks.tracks.index(span.track) * TRACK_PX + 19
        start, end = across.at(span.start), across.at(span.end)
        tip = element("title", f"{span.label}: {tick(span.end - span.start)} us")
        kind = tracks.kinds.index(span.kind)
        parts.append(
            element(
                "rect",
                tip,
                x=start,
                y=top,
                width=max(end - start, 0.3),
                height=BAR_PX,
                fill=fill(kind),
                class_="part",
            )
        )
        if end - start >= LEAST_LETTER_PX:
            parts.append(_letter((start + end) / 2, top + 13, letter(tracks, kind)))
    bottom = len(tracks.tracks) * TRACK_PX + 2
    parts.append(element("path", d=f"M1,{bottom:.1f}H{across.end:.1f}", class_="axis"))
    for value in across.ticks:
        anchor = "start" if value == 0 else "end" if value == across.ticks[-1] else "middle"
        parts.append(label(across.at(value), bottom + 16, tick(value), anchor=anchor, quiet=True))
    parts.append(label(0, bottom + 34, tracks.axis.title))
    entries, height = _key(tracks, bottom + 44)
    return drawing(height, words, *parts, entries)


def letter(tracks: Tracks, kind: int) -> str:
    """Return the letter of a kind: its place in the alphabet, so that no two are the same."""
    return chr(ord("a") + kind % 26) if tracks.kinds else ""


def _letter(x: float, y: float, content: str) -> Markup:
    return element("text", content, x=x, y=y, text_anchor="middle", class_="letter")


def _key(tracks: Tracks, top: float) -> tuple[Markup, float]:
    named = enumerate(tracks.kinds)
    return key([(fill(index), f"{letter(tracks, index)} {kind}") for index, kind in named], top)
