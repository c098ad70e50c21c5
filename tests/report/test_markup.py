"""Markup: whatever a text holds, it shows as text."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oasis_sim.report.page.markup import Markup, element, join, text
from oasis_sim.text import escape
from tests.page_reader import read_page

ANYTHING = st.text() | st.text(alphabet=string.punctuation + "scriptonload =\n\x1b\u202e")


def spelt(value: str) -> str:
    """Return what a reader should see of a text."""
    return "".join(each if each.isprintable() or each == "\n" else escape(each) for each in value)


@given(ANYTHING, ANYTHING)
def test_any_text_stays_text(content: str, attribute: str) -> None:
    """As content and as an attribute's value, it comes back as it was, and opens no element."""
    page = read_page(element("p", content, title=attribute))
    (paragraph,) = page.all()
    assert spelt(content) == paragraph.content()
    assert {"title": spelt(attribute)} == paragraph.attributes


def test_markup_is_kept_and_nothing_is_left_out() -> None:
    """Children that are markup are not escaped again; None adds nothing."""
    inner = element("b", "1 < 2")
    assert "<p>a &amp; <b>1 &lt; 2</b></p>" == element("p", "a & ", inner, None)
    assert Markup("") == join()


@pytest.mark.parametrize(
    ("attributes", "shown"),
    [
        ({"class_": "n", "stroke_width": 2}, ' class="n" stroke-width="2"'),
        ({"x": 1.04, "y": 3.0, "hidden": True}, ' x="1" y="3" hidden'),
        ({"class_": None, "hidden": False}, ""),
    ],
)
def test_attributes(attributes: dict[str, str | float | None], shown: str) -> None:
    """Names are spelt for HTML, coordinates shortened, None and False left out."""
    assert f"<g{shown}></g>" == element("g", **attributes)


def test_control_characters_are_spelt_out() -> None:
    """Terminal escapes and direction overrides are seen, not obeyed."""
    assert "\\x1b[31m\\u202ex" == text("\x1b[31m\u202ex")
