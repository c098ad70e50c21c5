"""From measured transfers to a network profile: fixed time, posting, efficiency by size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpu_exec.fit import curve
from gpu_exec.network.measure import Reading
from gpu_exec.network.transport import TransportInfo
from oasis_sim.errors import RunFailed
from oasis_sim.network import NetworkProfile
from oasis_sim.units import PS_PER_S

LARGEST_POSTING_SHARE = 0.9
"""Of the time of the smallest descriptor; the rest is at least some wire time."""
COALESCED_POSTING_SHARE = 0.1
STEPS_BETWEEN = 4
LARGEST_RATE = 1e15
"""Bytes per second of no link; what looks like more is no transfer time."""


@dataclass(frozen=True)
class Terms:
    """Hold seconds: `fixed_s` per transfer, `posting_s` per descriptor; wire seconds by size."""

    fixed_s: float
    posting_s: float
    wire_s: Mapping[int, float]


def fit_terms(readings: Sequence[Reading], nominal_bytes_per_s: int | None = None) -> Terms:
    """Fit t = fixed + count x (posting + wire(size)) to the readings that do not judge.

    First the fixed time and each size's seconds per descriptor, by least squares of relative
    errors; then posting and a common rate from those, in the same way. No size is left less time on
    the wire than at the nominal rate.
    """
    used = [reading for reading in readings if not reading.point.judges]
    sizes = sorted({reading.point.unit_bytes for reading in used})
    if len(sizes) < 2 or len(used) < len(sizes) + 1:
        raise RunFailed("too few transfers were measured to fit a network profile")
    weight = np.array([1 / reading.median_s for reading in used])
    matrix = np.zeros((len(used), len(sizes) + 1))
    matrix[:, 0] = 1.0
    for row, reading in enumerate(used):
        matrix[row, 1 + sizes.index(reading.point.unit_bytes)] = reading.point.count
    fixed, *each = _positive_fit(matrix * weight[:, None], np.ones(len(used)))
    posting = _posting(sizes, each)
    if nominal_bytes_per_s:
        room = [s - size / nominal_bytes_per_s for size, s in zip(sizes, each, strict=True)]
        posting = max(0.0, min(posting, *room))
    wire = {size: seconds - posting for size, seconds in zip(sizes, each, strict=True)}
    if any(seconds * LARGEST_RATE < size for size, seconds in wire.items()):
        raise RunFailed("the measured times do not grow with size and count; measure again")
    return Terms(fixed, posting, wire)


def _posting(sizes: Sequence[int], each: Sequence[float]) -> float:
    """Return a descriptor's seconds that its bytes do not explain, by least squares.

    Where bytes explain nothing, that is most of what the cheapest descriptor takes.
    """
    most = LARGEST_POSTING_SHARE * min(each)
    scale = 1 / np.array(each)
    matrix = np.stack([scale, np.array(sizes, dtype=float) * scale], axis=1)
    posting, per_byte = np.linalg.lstsq(matrix, np.ones(len(sizes)), rcond=None)[0]
    return most if per_byte <= 0 else min(max(0.0, float(posting)), most)


def _positive_fit(matrix: np.ndarray, target: np.ndarray) -> list[float]:
    """Return the least-squares solution; a first coefficient below zero is set to zero."""
    solution = np.linalg.lstsq(matrix, target, rcond=None)[0]
    if solution[0] < 0:
        rest = np.linalg.lstsq(matrix[:, 1:], target, rcond=None)[0]
        solution = np.concatenate([[0.0], rest])
    if solution[1:].min() <= 0:
        raise RunFailed("the measured times do not grow with size and count; measure again")
    return [float(value) for value in solution]


def profile_of(
    name: str,
    terms: Terms,
    info: TransportInfo,
    nominal_bytes_per_s: int | None,
    when: str,
) -> NetworkProfile:
    """Return the profile; without a nominal rate the best measured one takes its place."""
    rates = {size: size / seconds for size, seconds in terms.wire_s.items()}
    best = round(max(rates.values()))
    rate = nominal_bytes_per_s or best
    if rate < best:
        raise RunFailed(
            f"{best / 1e9:.3g} GB/s were measured, more than the nominal {rate / 1e9:.3g} GB/s; "
            "give the rate of what carried them with --bandwidth, or leave it out"
        )
    measured = f"measured, {when}"
    bandwidth = "given with --bandwidth" if nominal_bytes_per_s else f"{measured}: the best rate"
    sizes = [size for size, wire in terms.wire_s.items() if _posting_is_small(terms, wire)]
    return NetworkProfile(
        name=name,
        title=f"{info.transport}, {info.memory}, {info.peer}",
        origin="measured",
        nics=1,
        rails=1,
        send_bytes_per_s=rate,
        receive_bytes_per_s=rate,
        latency_ps=round(terms.fixed_s * PS_PER_S),
        posting_ps=round(terms.posting_s * PS_PER_S),
        completion_ps=0,
        efficiency=curve([(size, min(1.0, got / rate)) for size, got in _between(rates)]),
        coalesce_bytes=min(sizes, default=max(terms.wire_s)),
        remote_bytes=info.remote_bytes,
        sources={
            "nics": "what was measured is one link",
            "rails": "what was measured is one link",
            "nic.send": bandwidth,
            "nic.receive": bandwidth,
            "latency": f"{measured}: time of a transfer that no descriptor explains",
            "posting": f"{measured}: time of a descriptor that its bytes do not explain",
            "completion": "contained in the latency",
            "efficiency": f"{measured}: bytes per second of a descriptor without posting, at "
            f"{len(rates)} sizes; between them logarithms are interpolated",
            "coalesce": "the smallest measured size of which posting takes less than a tenth",
            "remote_capacity": "memory of the peer as its system reports it",
        },
    )


def _between(rates: Mapping[int, float]) -> list[tuple[float, float]]:
    """Return rates at the sizes and between them, straight lines of logarithm over logarithm.

    A profile interpolates shares, which would make a descriptor of a constant time too fast.
    """
    sizes = np.log(np.array(sorted(rates), dtype=float))
    logs = np.log(np.array([rates[size] for size in sorted(rates)]))
    ends = np.arange(len(sizes), dtype=float)
    places = np.linspace(0.0, ends[-1], 1 + STEPS_BETWEEN * (len(sizes) - 1))
    all_sizes = np.round(np.exp(np.interp(places, ends, sizes)))
    all_rates = np.exp(np.interp(places, ends, logs))
    return [(float(x), float(y)) for x, y in zip(all_sizes, all_rates, strict=True)]


def _posting_is_small(terms: Terms, wire_s: float) -> bool:
    return terms.posting_s < COALESCED_POSTING_SHARE * (terms.posting_s + wire_s)
