"""No module imports itself by way of others, not for a type and not inside a function either."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("oasis_sim", "gpu_exec")


def module_name(path: Path) -> str:
    """Return the dotted name under which a file of the checkout is imported."""
    place = path.relative_to(ROOT)
    return ".".join((place.parent if place.name == "__init__.py" else place.with_suffix("")).parts)


def imports(source: str, known: frozenset[str]) -> set[str]:
    """Return the known modules that a source imports anywhere: at its top, for types, in functions.

    Of ``from package import name`` it is the module `package.name`, if there is one.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in known else str(node.module))
    return found & known


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return one circle of a graph, each module followed by one that it imports; [] without any."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_no_import_circle() -> None:
    """The modules of both packages can be put in an order in which each imports earlier ones."""
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    known = frozenset(map(module_name, paths))
    graph = {module_name(path): imports(path.read_text("utf-8"), known) for path in paths}
    assert any(graph.values())
    assert [] == circle(graph)


@pytest.mark.parametrize(
    "line",
    [
        "import box.lid",
        "from box import lid",
        "from box.lid import hinge",
        "if TYPE_CHECKING:\n    from box.lid import Hinge",
        "def open():\n    from box.lid import hinge",
    ],
)
def test_circles_are_found(line: str) -> None:
    """An import counts in whatever form it is written."""
    known = frozenset({"box", "box.lid", "box.side"})
    graph = {"box.side": imports(line, known), "box.lid": imports("import box.side", known)}
    assert ["box.lid", "box.side"] == sorted(set(circle(graph)))
