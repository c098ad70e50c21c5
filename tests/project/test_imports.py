"""Imports go one way, and the command line starts without the heavy packages."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A part may import itself and the parts of smaller rank.
RANKS = {
    "compiled": 0,
    "curve": 0,
    "errors": 0,
    "text": 0,
    "units": 0,
    "fileio": 1,
    "hardware": 2,
    "model": 2,
    "network": 2,
    "scheme": 2,
    "trace": 2,
    "workload": 2,
    "residency": 3,
    "record": 3,
    "engine": 4,
    "cluster": 5,
    "metrics": 6,
    "report": 7,
    "paper": 8,
    "plan": 8,
    "quality": 8,
    "cli": 9,
}
# These compare execution with simulation, so they run it; nothing that executes does.
COMPARING = (
    "calibrate.py",
    "calibrate_foreground.py",
    "calibrate_transport.py",
    "default_run.py",
    "left_out.py",
    "repeatability.py",
)
COMPARING += ("predict.py",)
# What the GPU side may see beyond the inputs and residency (rank 3): the schedule and its file.
GPU_EXEC_ALSO = ("oasis_sim.engine.schedule", "oasis_sim.engine.npz", "oasis_sim.engine.result")


def imported(path: Path, *, top_level_only: bool = False) -> set[str]:
    """Name the modules that a file imports, as ``package.module`` paths."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(str(node.module))
            if node.module == "oasis_sim":
                found.update(f"oasis_sim.{alias.name}" for alias in node.names)
    return found


def part_of(module: str) -> str:
    """Return the second name of a module: the part of oasis_sim that it belongs to."""
    return module.split(".")[1] if "." in module else ""


SOURCES = sorted((ROOT / "oasis_sim").rglob("*.py"))
GPU_SOURCES = sorted((ROOT / "gpu_exec").rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    """No module imports a part of the same or a higher rank, other than its own."""
    own = path.relative_to(ROOT / "oasis_sim").with_suffix("").parts[0]
    if own == "__init__":
        assert imported(path) <= {"__future__"}
        return
    wrong = {
        module
        for module in imported(path)
        if module.startswith("oasis_sim.")
        and part_of(module) in RANKS
        and part_of(module) != own
        and RANKS[part_of(module)] >= RANKS[own]
        and RANKS[own] > 0
    }
    assert set() == wrong


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_simulator_does_not_import_the_gpu_side(path: Path) -> None:
    """Only commands import gpu_exec, and only when they run."""
    assert not any(name.split(".")[0] == "gpu_exec" for name in imported(path, top_level_only=True))
    if path.parent.name != "cli":
        assert not any(name.split(".")[0] == "gpu_exec" for name in imported(path))


@pytest.mark.parametrize("path", GPU_SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_gpu_side_sees_inputs_and_schedules_only(path: Path) -> None:
    """What executes imports inputs, residency and the schedule, not engine, metrics or report.

    ``gpu_exec.model`` decodes real models behind the interface of ``oasis_sim.quality``.
    """
    highest = "engine" if path.name in COMPARING else "residency"
    if path.parent.name == "model":
        highest = "quality"
    wrong = {
        module
        for module in imported(path)
        if module.startswith("oasis_sim.")
        and RANKS.get(part_of(module), 0) > RANKS[highest]
        and not module.startswith(GPU_EXEC_ALSO)
    }
    assert set() == wrong


def test_every_part_has_a_rank() -> None:
    """A new part of oasis_sim must be given its place."""
    parts = {
        path.relative_to(ROOT / "oasis_sim").with_suffix("").parts[0]
        for path in SOURCES
        if path.name != "__init__.py" or path.parent != ROOT / "oasis_sim"
    }
    assert set() == parts - set(RANKS)


def declared(*groups: str) -> set[str]:
    """Return the import names of the dependencies, and of some extras, in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    listed = [*project["dependencies"]]
    for group in groups:
        listed += project["optional-dependencies"][group]
    names = {re.split(r"[^A-Za-z0-9_-]", item)[0] for item in listed}
    return {"yaml" if name == "pyyaml" else name for name in names}


def third_party(path: Path, *, top_level_only: bool) -> set[str]:
    """Return the packages of others that a module imports."""
    names = {name.split(".")[0] for name in imported(path, top_level_only=top_level_only)}
    return names - set(sys.stdlib_module_names) - {"oasis_sim", "gpu_exec"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_simulator_needs_only_its_dependencies(path: Path) -> None:
    """What an import needs is a dependency; what runs real models may need its extra as well."""
    parts_with_torch = [ROOT / "oasis_sim" / part for part in ("record", "quality")]
    has_torch = any(path.is_relative_to(part) for part in parts_with_torch)
    groups = ("record",) if has_torch else ()
    assert set() == third_party(path, top_level_only=True) - declared(*groups)
    extras = declared("record", "gpu", "plot", "parquet", "ray")
    assert set() == third_party(path, top_level_only=False) - extras


@pytest.mark.parametrize("path", GPU_SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_gpu_side_needs_only_its_extra(path: Path) -> None:
    """What gpu_exec imports is a dependency or in the extra gpu (torch brings triton)."""
    assert set() == third_party(path, top_level_only=False) - declared("gpu") - {"triton"}


@pytest.mark.parametrize("statement", ["import oasis_sim", "import oasis_sim.cli.main"])
def test_start_is_light(statement: str) -> None:
    """Neither the package nor the command line's frame imports a heavy package."""
    heavy = ["torch", "pandas", "matplotlib", "numba", "transformers", "scipy", "numpy"]
    code = f"import sys; {statement}; print([m for m in {heavy} if m in sys.modules])"
    assert "[]" == run_python("-c", code).strip()


def test_help_is_light() -> None:
    """``--help`` lists the commands without importing any of them."""
    code = (
        "import atexit, sys; sys.argv = ['oasis-sim', '--help']; "
        "heavy = {'torch', 'pandas', 'numpy'}; "
        "atexit.register(lambda: print(sorted(heavy & set(sys.modules))));"
        "from oasis_sim.cli.main import entry_point; entry_point()"
    )
    output = run_python("-c", code)
    assert "Usage:" in output
    assert output.rstrip().endswith("[]")


def run_python(*arguments: str) -> str:
    """Run a fresh interpreter in the checkout and return its standard output."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout
