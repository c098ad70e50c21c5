"""Pages hang together: links lead somewhere, named files exist, the README lists every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md")])
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
NAMED = re.compile(r"\b(?:oasis_sim|gpu_exec|benchmarks|docs)/[\w/.-]+\.(?:cuh|cu|h|py|md|svg)\b")


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_names_lead_somewhere(page: Path) -> None:
    """To a file, and where an anchor is given to a heading of it; files named in text exist."""
    text = page.read_text("utf-8")
    for name, anchor in LINK.findall(text):
        target = page.parent / name if name else page
        assert target.exists(), name
        assert not anchor or anchor in headings(target), anchor
    if page.name != "CHANGELOG.md":  # tells of files that are gone
        assert [] == [name for name in NAMED.findall(text) if not (ROOT / name).exists()]


def test_the_readme_lists_every_page() -> None:
    """Whoever starts at the README finds each page of docs/."""
    linked = {name for name, _ in LINK.findall((ROOT / "README.md").read_text("utf-8"))}
    assert set() == {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} - linked
