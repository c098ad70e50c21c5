"""Compiled functions: numba, with its results kept on disk where that is possible.

numba keeps a result as long as the file of the function is unchanged. A compiled function also
contains the functions and constants that it takes from other modules, so results are kept apart by
the text of a function's module and of all modules of this package that it imports.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import config, njit
from numba.core import event

Function = TypeVar("Function", bound=Callable[..., Any])

PACKAGE = Path(__file__).parent
NUMBERS = ("None", "bool", "int", "float", "tuple[int, int]")
"""What uncounted functions may return, as their annotations say it."""
IMPORT = re.compile(r"^from (oasis_sim[\w.]*) import", re.MULTILINE)


def compiled(function: Function) -> Function:
    """Compile on the first call; keep the result on disk where a place for it can be found."""
    return _compiled(function, counting=True)


def uncounted(function: Function) -> Function:
    """Compile like `compiled`, for inner loops: without counting references to arrays.

    numba counts a reference, atomically, for every array and view that a function is given or
    makes; in the decode pipeline that was more than half of the time. The caller holds the
    arrays. Such a function may take views, but neither make arrays (numba refuses that) nor return
    them (which would free them too early): TypeError unless it returns plain numbers or nothing.
    """
    returned = function.__annotations__["return"]
    if returned not in NUMBERS:
        raise TypeError(f"{function.__name__} returns {returned}, not one of {', '.join(NUMBERS)}")
    return _compiled(function, counting=False)


def _compiled(function: Function, *, counting: bool) -> Function:
    """Compile; without the entry for C callbacks, which nobody uses and which takes long."""
    options = {"_nrt": counting, "no_cfunc_wrapper": True}
    given = config.CACHE_DIR
    try:
        config.CACHE_DIR = str(_place(Path(function.__code__.co_filename), given) or "")
        return cast("Function", njit(cache=True, **options)(function))
    except RuntimeError:  # no cache directory is writable
        return cast("Function", njit(**options)(function))
    finally:
        config.CACHE_DIR = given


@cache
def _place(source: Path, given: str) -> Path | None:
    """Return the directory for what is compiled from a module; drop those of its older texts.

    `given` is the directory that the user wants all to be below, if any.
    """
    base = Path(given) if given else _usual_base()
    if base is None:
        return None
    texts = b"".join(path.read_bytes() for path in sorted(sources(source)))
    place = base / f"{source.stem}-{hashlib.sha256(texts).hexdigest()[:16]}"
    if not place.exists():
        for older in base.glob(f"{source.stem}-" + "[0-9a-f]" * 16):
            shutil.rmtree(older, ignore_errors=True)
    return place


def _usual_base() -> Path | None:
    """Return a directory beside the package if it can be written to, else one of the user's."""
    if os.access(PACKAGE, os.W_OK):
        return PACKAGE / "__pycache__" / "compiled"
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return home / "oasis-sim"


def sources(module: Path) -> set[Path]:
    """Return the file of a module and those of this package that it imports, near and far."""
    found: set[Path] = set()
    new = [module]
    while new:
        path = new.pop()
        if path in found:
            continue
        found.add(path)
        for name in IMPORT.findall(path.read_text(encoding="utf-8")):
            target = PACKAGE.joinpath(*name.split(".")[1:])
            new.append(target / "__init__.py" if target.is_dir() else target.with_suffix(".py"))
    return found


class _FirstCompilation(event.Listener):  # type: ignore[misc]  # numba carries no types
    """Call a function when the first compilation starts."""

    def __init__(self, tell: Callable[[], None]) -> None:
        """Wait for a compilation to tell of."""
        self._tell = tell
        self._told = False

    def on_start(self, event: event.Event) -> None:  # noqa: ARG002 - numba's signature
        """Tell of the first compilation only."""
        if not self._told:
            self._told = True
            self._tell()

    def on_end(self, event: event.Event) -> None:
        """Do nothing when a compilation has ended."""


@contextmanager
def compilation_told(tell: Callable[[], None]) -> Iterator[None]:
    """Call `tell` once if anything has to be compiled inside the block."""
    with event.install_listener("numba:compile", _FirstCompilation(tell)):
        yield
