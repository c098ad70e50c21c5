"""ARCHITECTURE.md, the package list and the shipped data agree with the tree."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MODULE_LINES = 300


def settings() -> dict[str, Any]:
    """Return pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def map_maker() -> ModuleType:
    """Import docs/architecture_map.py."""
    spec = importlib.util.spec_from_file_location(
        "architecture_map", ROOT / "docs" / "architecture_map.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_module_map_is_current() -> None:
    """The map lists every module with the first line of its docstring."""
    document = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    hint = "run: python docs/architecture_map.py --write"
    assert map_maker().renewed(document) == document, hint


def test_named_paths_exist() -> None:
    """Each file that the table of changes names is there."""
    document = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = document.partition("## To change X")[2].partition("## Modules")[0]
    named = re.findall(r"`((?:oasis_sim|gpu_exec|hw_profiles|tests)/[A-Za-z_/]*(?:\.py)?)`", table)
    assert named
    assert [] == [name for name in named if not (ROOT / name).exists()]


def test_every_module_says_what_it_is() -> None:
    """Each module has a docstring, so that the map can be read."""
    modules = [
        path for folder in ("oasis_sim", "gpu_exec") for path in (ROOT / folder).rglob("*.py")
    ]
    assert [] == [path for path in modules if not map_maker().first_line(path)]


def test_modules_are_short() -> None:
    """No module is longer than 300 lines."""
    modules = [
        path for folder in ("oasis_sim", "gpu_exec") for path in (ROOT / folder).rglob("*.py")
    ]
    long = [path for path in modules if path.read_text("utf-8").count("\n") > MODULE_LINES]
    assert [] == long


def test_package_list_is_complete() -> None:
    """Every folder with modules is in pyproject.toml's package list, and nothing else is."""
    folders = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for name in ("oasis_sim", "gpu_exec")
        for path in (ROOT / name).rglob("__init__.py")
    }
    mapped = settings()["tool"]["setuptools"]["package-dir"]
    assert sorted(folders | set(mapped)) == settings()["tool"]["setuptools"]["packages"]


def test_modules_lie_in_packages() -> None:
    """No folder with modules lacks its __init__.py (it would be left out of the wheel)."""
    bare = {
        path.parent
        for name in ("oasis_sim", "gpu_exec")
        for path in (ROOT / name).rglob("*.py")
        if not (path.parent / "__init__.py").exists()
    }
    assert set() == bare


def test_data_is_shipped() -> None:
    """Every committed data file inside a package matches a pattern of package-data."""
    tool = settings()["tool"]["setuptools"]
    try:
        listed = subprocess.run(
            ["git", "ls-files", "oasis_sim", "gpu_exec", "hw_profiles", "traces"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the git checkout to know which files are data")
    places = {package.replace(".", "/"): package for package in tool["packages"]}
    places.update({folder: package for package, folder in tool["package-dir"].items()})
    shipped = {
        path
        for folder, package in places.items()
        for pattern in tool["package-data"].get(package, [])
        for path in (ROOT / folder).glob(pattern)
    }
    data = {ROOT / name for name in listed.stdout.split() if not name.endswith(".py")}
    not_shipped = {path for path in data - shipped if "texts" not in path.parts}
    assert set() == not_shipped
