"""Quantities with units: exact, unambiguous, and refused when in doubt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oasis_sim.errors import InputError
from oasis_sim.units import (
    LARGEST,
    format_bandwidth,
    format_bytes,
    format_flops,
    format_time,
    parse_bandwidth,
    parse_bytes,
    parse_flops,
    parse_time,
)

PARSERS = (parse_bytes, parse_bandwidth, parse_time, parse_flops)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_bytes, "80 GiB", 80 * 2**30),
        (parse_bytes, "80 GB", 80 * 10**9),
        (parse_bytes, "0.5KiB", 512),
        (parse_bytes, "1e3 kB", 10**6),
        (parse_bytes, "0 B", 0),
        (parse_bandwidth, "3.35 TB/s", 3_350_000_000_000),
        (parse_bandwidth, "400 Gbit/s", 50_000_000_000),
        (parse_bandwidth, "1 GiB/s", 2**30),
        (parse_time, "2 us", 2_000_000),
        (parse_time, "2 \N{MICRO SIGN}s", 2_000_000),
        (parse_time, "0.68us", 680_000),
        (parse_time, "1.76 s", 1_760_000_000_000),
        (parse_time, "1 h", 3600 * 10**12),
        (parse_flops, "989 TFLOP/s", 989e12),
    ],
)
def test_reads(parse: Callable[[str], float], text: str, value: float) -> None:
    """A quantity in words becomes the exact number."""
    assert value == parse(text)


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        (parse_bytes, "80 Gb", "use GB or GiB"),
        (parse_bytes, "80 gb", "not a unit"),
        (parse_bytes, "80 GB/s", "not a unit"),
        (parse_bytes, "80", "write a number and"),
        (parse_bytes, "GiB", "not a size"),
        (parse_bytes, "0.3 B", "whole number of bytes"),
        (parse_bytes, "-1 GB", "negative"),
        (parse_bytes, "99999 PB", "too large"),
        (parse_bytes, "1e99 PB", "too large"),
        (parse_bytes, "nan GB", "not a size"),
        (parse_bytes, "inf GB", "not a size"),
        (parse_bytes, "1_000 GB", "not a"),
        (parse_bytes, "1,5 GB", "not a"),
        (parse_bandwidth, "400 Gb/s", "Gbit/s"),
        (parse_bandwidth, "400 Gbps", "not a unit"),
        (parse_time, "5 m", "min"),
        (parse_time, "5 S", "not a unit"),
        (parse_flops, "989 TFLOPS", "TFLOP/s"),
    ],
)
def test_refuses(parse: Callable[[str], float], text: str, said: str) -> None:
    """What is ambiguous, negative, too large or no quantity is refused with advice."""
    with pytest.raises(InputError, match=said):
        parse(text)


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("value", [None, True, 80, 8.5, [], {}, b"80 GB"])
def test_refuses_what_is_not_text(parse: Callable[[Any], float], value: object) -> None:
    """A number without a unit is no quantity."""
    with pytest.raises(InputError, match="has no unit"):
        parse(value)


@given(st.text(max_size=30) | st.from_regex(r"[0-9.eE+-]{1,8} ?[A-Za-z/]{0,6}", fullmatch=True))
def test_reads_or_refuses_any_text(text: str) -> None:
    """Any text gives a value in range or an InputError, nothing else."""
    for parse in PARSERS:
        try:
            assert 0 <= parse(text) <= LARGEST
        except InputError:
            continue


@given(st.integers(0, 2**50))
def test_whole_bytes_survive(size: int) -> None:
    """Writing bytes as a plain count and reading them is exact."""
    assert size == parse_bytes(f"{size} B")


@given(st.integers(1, 2**62))
def test_format_keeps_three_digits(size: int) -> None:
    """Formatting and reading back changes a size by less than half a percent and never wildly."""
    for shown in (format_bytes(size), format_bytes(size, binary=True)):
        read = parse_bandwidth(shown.replace(",", "") + "/s")
        assert abs(read - size) <= 0.006 * size + 1


def test_formats() -> None:
    """Quantities print with three digits and their unit."""
    assert ["0 B", "999 B", "1.00 kB", "65.5 GB", "100 kB"] == [
        format_bytes(size) for size in (0, 999, 1000, 65.5e9, 99_960)
    ]
    assert "80.0 GiB" == format_bytes(80 * 2**30, binary=True)
    assert "3.35 TB/s" == format_bandwidth(3.35e12)
    assert "62.6 ms" == format_time(62_600_000_000)
    assert "989 TFLOP/s" == format_flops(989e12)
