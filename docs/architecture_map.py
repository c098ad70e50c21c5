"""Print or renew the module map of ARCHITECTURE.md: each module with its docstring's first line.

python docs/architecture_map.py            print the map
python docs/architecture_map.py --write    put it into ARCHITECTURE.md
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("oasis_sim", "gpu_exec", "hw_profiles", "traces", "benchmarks", "docs")
BEGIN = "<!-- module map: renew with `python docs/architecture_map.py --write` -->"
END = "<!-- end of the module map -->"


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def module_map() -> str:
    """Return the map: one section per folder, one line per module."""
    sections = []
    for folder in FOLDERS:
        packages: dict[Path, list[Path]] = {}
        for path in sorted((ROOT / folder).rglob("*.py")):
            packages.setdefault(path.parent, []).append(path)
        for package, modules in sorted(packages.items()):
            sections.append(section(package, modules))
    return "\n\n".join(sections)


def section(package: Path, modules: list[Path]) -> str:
    """Return the part of the map for one folder; its own docstring is the heading's text."""
    name = package.relative_to(ROOT)
    texts = {path.name: first_line(path) for path in modules}
    head = texts.pop("__init__.py", "")
    lines = [f"- `{module}`: {text}" for module, text in texts.items()]
    return "\n".join([f"**{name}/** {head}".rstrip(), "", *lines]).rstrip()


def renewed(document: str) -> str:
    """Return ARCHITECTURE.md with a fresh map between its marks."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{module_map()}\n\n{END}{after}"


def main() -> None:
    """Print the map, or write it into ARCHITECTURE.md."""
    if "--write" not in sys.argv[1:]:
        print(module_map())
        return
    path = ROOT / "ARCHITECTURE.md"
    path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
