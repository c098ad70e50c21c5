"""Compiled functions: numba, with its results kept on disk where that is possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from numba import njit
from numba.core import event

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile on the first call; keep the result on disk where a place for it can be found."""
    try:
        return cast("Function", njit(cache=True)(function))
    except RuntimeError:  # no cache directory is writable
        return cast("Function", njit(function))


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
