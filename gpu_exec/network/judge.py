"""The network model beside measured transfers that it was not fitted to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpu_exec.network.measure import Reading
from gpu_exec.network.transport import TransportInfo
from oasis_sim.errors import RunFailed, TargetMissed
from oasis_sim.network import NetworkProfile
from oasis_sim.units import PS_PER_S

MEDIAN_BOUND_PCT = 10.0


@dataclass(frozen=True)
class Judgement:
    """Hold the errors over the held-out points, in percent of the measured times."""

    points: int
    median_abs_error_pct: float
    max_abs_error_pct: float
    median_spread_pct: float


def error_pct(network: NetworkProfile, reading: Reading) -> float:
    """Return the simulated time's error in percent of the measured one."""
    simulated_s = network.transfer_ps(reading.point.transfer) / PS_PER_S
    return 100.0 * (simulated_s - reading.median_s) / reading.median_s


def judge(network: NetworkProfile, readings: Sequence[Reading]) -> Judgement:
    """Compare simulated and measured times of the points that were not fitted."""
    held_out = [reading for reading in readings if reading.point.judges]
    if not held_out:
        raise RunFailed("no transfer was held out to judge the model")
    errors = [abs(error_pct(network, reading)) for reading in held_out]
    return Judgement(
        len(errors),
        statistics.median(errors),
        max(errors),
        statistics.median(reading.spread_pct for reading in held_out),
    )


def check(judgement: Judgement) -> None:
    """Raise TargetMissed when the model is too far off."""
    if judgement.median_abs_error_pct > MEDIAN_BOUND_PCT:
        raise TargetMissed(
            f"simulated transfers are off by {judgement.median_abs_error_pct:.1f} % in the median "
            f"of {judgement.points} that were not fitted (bound {MEDIAN_BOUND_PCT:g} %)"
        )


def readings_json(
    origin: dict[str, str], info: TransportInfo, readings: Sequence[Reading]
) -> dict[str, Any]:
    """Return every reading, as measured."""
    return {
        "format": "oasis-network-calibration",
        "version": 1,
        **origin,
        **asdict(info),
        "verified": "every byte of every transfer",
        "statistic": "median of all transfers; spread: distance of the quartiles",
        "rows": [
            {
                "unit_bytes": reading.point.unit_bytes,
                "count": reading.point.count,
                "held_out": reading.point.judges,
                "measured_us": reading.median_s * 1e6,
                "fastest_us": reading.best_s * 1e6,
                "spread_pct": reading.spread_pct,
                "transfers": len(reading.seconds),
                "gb_per_s": reading.point.transfer.total_bytes / reading.median_s / 1e9,
                "all_us": [round(second * 1e6, 2) for second in reading.seconds],
            }
            for reading in readings
        ],
    }


def to_json(
    origin: dict[str, str],
    info: TransportInfo,
    network: NetworkProfile,
    readings: Sequence[Reading],
    judgement: Judgement,
) -> dict[str, Any]:
    """Return every reading beside what the fitted profile says of it."""
    document = readings_json(origin, info, readings)
    for row, reading in zip(document["rows"], readings, strict=True):
        row["simulated_us"] = network.transfer_ps(reading.point.transfer) / 1e6
        row["error_pct"] = error_pct(network, reading)
    return {**document, "profile": network.name, "summary": asdict(judgement)}


def table_lines(document: dict[str, Any]) -> list[str]:
    """Return the held-out transfers as a text table with the summary below."""
    lines = [
        f"{'units':>6} {'bytes':>9} {'measured us':>12} {'simulated us':>12} {'error %':>8} "
        f"{'spread %':>9}"
    ]
    lines += [
        f"{row['count']:>6} {row['unit_bytes']:>9,} {row['measured_us']:>12,.1f} "
        f"{row['simulated_us']:>12,.1f} {row['error_pct']:>+8.1f} {row['spread_pct']:>9.0f}"
        for row in document["rows"]
        if row["held_out"]
    ]
    summary = document["summary"]
    lines.append(
        f"{summary['points']} transfers that were not fitted: median absolute error "
        f"{summary['median_abs_error_pct']:.1f} %, largest {summary['max_abs_error_pct']:.1f} %; "
        f"their own quartiles lie {summary['median_spread_pct']:.0f} % apart in the median"
    )
    return lines
