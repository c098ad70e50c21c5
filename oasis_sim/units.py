"""Quantities with units in words, to and from plain numbers.

Inside the simulator sizes are integer bytes, times integer picoseconds, bandwidths integer
bytes per second and compute rates floating-point FLOP per second. GB is 1e9 bytes and GiB is
2**30 bytes. Bits are written out ("Gbit"): "Gb" is refused, because people mean both by it.
"""

from __future__ import annotations

import re
from fractions import Fraction

from oasis_sim.errors import InputError

KIB = 2**10
MIB = 2**20
GIB = 2**30
TIB = 2**40
KB = 10**3
MB = 10**6
GB = 10**9
TB = 10**12

PS_PER_NS = 10**3
PS_PER_US = 10**6
PS_PER_MS = 10**9
PS_PER_S = 10**12

LARGEST = 2**63 - 1
"""The largest size, time or bandwidth: what a 64-bit signed integer holds."""

_BYTE_UNITS: dict[str, int] = {
    "B": 1,
    "kB": KB,
    "KB": KB,
    "MB": MB,
    "GB": GB,
    "TB": TB,
    "PB": 10**15,
    "KiB": KIB,
    "MiB": MIB,
    "GiB": GIB,
    "TiB": TIB,
    "PiB": 2**50,
}
_BIT_UNITS: dict[str, int] = {
    "bit": 1,
    "kbit": KB,
    "Mbit": MB,
    "Gbit": GB,
    "Tbit": TB,
}
_BANDWIDTH_UNITS: dict[str, Fraction] = {
    **{f"{unit}/s": Fraction(factor) for unit, factor in _BYTE_UNITS.items()},
    **{f"{unit}/s": Fraction(factor, 8) for unit, factor in _BIT_UNITS.items()},
}
_TIME_UNITS: dict[str, int] = {
    "ps": 1,
    "ns": PS_PER_NS,
    "us": PS_PER_US,
    "\N{MICRO SIGN}s": PS_PER_US,
    "\N{GREEK SMALL LETTER MU}s": PS_PER_US,
    "ms": PS_PER_MS,
    "s": PS_PER_S,
    "min": 60 * PS_PER_S,
    "h": 3600 * PS_PER_S,
}
_FLOPS_UNITS: dict[str, int] = {
    "FLOP/s": 1,
    "MFLOP/s": MB,
    "GFLOP/s": GB,
    "TFLOP/s": TB,
    "PFLOP/s": 10**15,
}

_POWER_UNITS: dict[str, int] = {"W": 1, "kW": 1000}

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]{1,25}(?:\.[0-9]{0,25})?|\.[0-9]{1,25})(?:[eE][+-]?[0-9]{1,2})?)"
    r"\s*(?P<unit>[^\s0-9.+-][^\s]*)"
)


def parse_bytes(text: str) -> int:
    """Read a size such as ``80 GiB`` or ``3.8 GiB`` as bytes, rounded to the nearest.

    Raise InputError for anything else, and for a part of a byte.
    """
    size = _parse(text, "size", _BYTE_UNITS, "GB or GiB, as in '80 GiB'")
    if 0 < size < 1:
        raise InputError(f"{text!r} is not a whole number of bytes")
    return round(size)


def parse_bandwidth(text: str) -> int:
    """Read a bandwidth such as ``3.35 TB/s`` or ``400 Gbit/s`` as bytes per second."""
    return round(_parse(text, "bandwidth", _BANDWIDTH_UNITS, "GB/s, GiB/s or Gbit/s"))


def parse_time(text: str) -> int:
    """Read a time such as ``2 us`` as picoseconds, rounded to the nearest."""
    return round(_parse(text, "time", _TIME_UNITS, "ps, ns, us, ms, s, min or h"))


def parse_flops(text: str) -> float:
    """Read a compute rate such as ``989 TFLOP/s`` as FLOP per second."""
    return float(_parse(text, "compute rate", _FLOPS_UNITS, "GFLOP/s, TFLOP/s or PFLOP/s"))


def parse_power(text: str) -> float:
    """Read a power such as ``700 W`` or ``1.2 kW`` as watts."""
    return float(_parse(text, "power", _POWER_UNITS, "W or kW"))


def _parse(
    text: str, noun: str, units: dict[str, int] | dict[str, Fraction], advice: str
) -> Fraction:
    """Split a number from its unit and return the exact product.

    Raise InputError when the text is no quantity, the unit is unknown or ambiguous, or the
    value is negative or too large.
    """
    if not isinstance(text, str):
        raise InputError(f"{text!r} has no unit", fix=f"write the {noun} with {advice}")
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{text[:60]!r} is not a {noun}", fix=f"write a number and {advice}")
    unit = match["unit"]
    if unit not in units:
        raise InputError(f"{unit[:40]!r} is not a unit of {noun}", fix=f"use {advice}")
    value = Fraction(match["number"]) * units[unit]
    if value < 0:
        raise InputError(f"{text!r} is negative")
    if value > LARGEST:
        raise InputError(f"{text!r} is too large")
    return value


def format_bytes(size: float, *, binary: bool = False) -> str:
    """Write a size with three significant digits: ``65.5 GB``, or ``61.0 GiB`` when binary."""
    return _scaled(size, _BINARY if binary else _DECIMAL, "B")


def format_bandwidth(bytes_per_s: float) -> str:
    """Write a bandwidth with three significant digits: ``3.35 TB/s``."""
    return _scaled(bytes_per_s, _DECIMAL, "B/s")


def format_flops(flop_per_s: float) -> str:
    """Write a compute rate with three significant digits: ``989 TFLOP/s``."""
    return _scaled(flop_per_s, _DECIMAL, "FLOP/s")


def format_time(time_ps: float) -> str:
    """Write a time with three significant digits in the unit that suits: ``62.6 ms``."""
    return _scaled(time_ps, _TIME, "")


_DECIMAL: tuple[tuple[float, str], ...] = (
    (10**15, "P"),
    (TB, "T"),
    (GB, "G"),
    (MB, "M"),
    (KB, "k"),
    (1, ""),
)
_BINARY: tuple[tuple[float, str], ...] = (
    (2**50, "Pi"),
    (TIB, "Ti"),
    (GIB, "Gi"),
    (MIB, "Mi"),
    (KIB, "Ki"),
    (1, ""),
)
_TIME: tuple[tuple[float, str], ...] = (
    (PS_PER_S, "s"),
    (PS_PER_MS, "ms"),
    (PS_PER_US, "us"),
    (PS_PER_NS, "ns"),
    (1, "ps"),
)


def _scaled(value: float, steps: tuple[tuple[float, str], ...], unit: str) -> str:
    """Divide by the largest step that leaves at least one and append its prefix."""
    size = abs(value)
    step, prefix = next(((step, name) for step, name in steps if size >= step), steps[-1])
    scaled = value / step
    whole = step == 1 and scaled == int(scaled)
    digits = 0 if whole or abs(scaled) >= 99.95 else 1 if abs(scaled) >= 9.995 else 2
    return f"{scaled:,.{digits}f} {prefix}{unit}"
