"""Read a report's page as a browser would, as far as tests need it."""

from __future__ import annotations

import base64
import csv
import io
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "wbr"}


@dataclass
class Element:
    """Hold an element of the page."""

    tag: str
    attributes: dict[str, str | None]
    parent: Element | None = None
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def all(self, tag: str | None = None) -> list[Element]:
        """Return the elements below, in the order of the page, of one tag or of all."""
        found = []
        for child in self.children:
            found += [child] if tag in (None, child.tag) else []
            found += child.all(tag)
        return found

    def content(self) -> str:
        """Return the text of the element and of what is below."""
        return self.text + "".join(child.content() for child in self.children)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.top = Element("page", {})
        self._open = self.top

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs), self._open)
        self._open.children.append(element)
        if tag not in VOID:
            self._open = element

    def handle_endtag(self, tag: str) -> None:
        assert tag == self._open.tag, f"</{tag}> closes <{self._open.tag}>"
        assert self._open.parent is not None
        self._open = self._open.parent

    def handle_data(self, data: str) -> None:
        self._open.text += data


def read_page(text: str) -> Element:
    """Return the page; fail where elements are not closed in their order."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert reader._open is reader.top
    return reader.top


def tables_of(page: Element) -> dict[str, list[list[str]]]:
    """Return the rows of every CSV that the page holds, by the name it is saved under."""
    found = {}
    for link in page.all("a"):
        name, place = link.attributes.get("download"), link.attributes["href"] or ""
        if name is not None and name.endswith(".csv"):
            assert place.startswith("data:text/csv;charset=utf-8;base64,")
            content = base64.b64decode(place.partition(",")[2]).decode("utf-8")
            assert name not in found
            found[name] = list(csv.reader(io.StringIO(content)))
    return found
