"""Compiled functions: numba, with its results kept on disk where that is possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile on the first call; keep the result on disk where a place for it can be found."""
    try:
        return cast("Function", njit(cache=True)(function))
    except RuntimeError:  # no cache directory is writable
        return cast("Function", njit(function))
