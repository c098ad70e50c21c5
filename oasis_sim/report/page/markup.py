"""Build HTML and SVG: elements whose texts are escaped, so that no name can become markup."""

from __future__ import annotations

import html

from oasis_sim.text import escape

VOID = frozenset({"meta", "link", "br", "wbr"})
LINES = frozenset(
    {"head", "header", "nav", "main", "section", "footer", "figure", "table", "tr", "svg"}
)
"""Elements that end a line of the file, so that two versions of a page can be compared."""


class Markup(str):
    """Mark text that is markup already."""

    __slots__ = ()


Child = str | None
Attribute = str | int | float | bool | None


def text(value: str) -> Markup:
    """Return text that shows as it is: markup escaped, characters that do not print spelt out."""
    shown = "".join(each if each.isprintable() or each == "\n" else escape(each) for each in value)
    return Markup(html.escape(shown))


def element(tag: str, *children: Child, **attributes: Attribute) -> Markup:
    """Return an element; children that are not `Markup` are escaped, None is left out.

    Attributes: `class_` stands for `class`, other underscores for hyphens; None and False are left
    out, True stands without a value.
    """
    parts = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        key = name.rstrip("_").replace("_", "-")
        parts.append(key if value is True else f'{key}="{text(_plain(value))}"')
    opening = Markup(f"<{' '.join(parts)}>")
    if tag in VOID:
        return opening
    ending = "\n" if tag in LINES else ""
    return Markup(f"{opening}{join(*children)}</{tag}>{ending}")


def join(*children: Child) -> Markup:
    """Return children one after the other."""
    return Markup(
        "".join(
            child if isinstance(child, Markup) else text(child)
            for child in children
            if child is not None
        )
    )


def _plain(value: str | float) -> str:
    """Return an attribute's value; coordinates to a tenth, without a needless zero."""
    return f"{round(value, 1):g}" if isinstance(value, float) else str(value)
