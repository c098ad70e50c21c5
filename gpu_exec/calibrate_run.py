"""Run a calibration from start to files: refuse a bad card, measure, write profile and raw data."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpu_exec.calibrate import Calibration, Kept
from gpu_exec.device import Runner, compute_processes, query_gpus, refusal, run_query
from gpu_exec.probes import TRANSFER, LinkProbe, Notebook, ReadProbe, StepProbe
from gpu_exec.profile_file import MeasuredLimits, profile_yaml
from gpu_exec.rounds import REPEAT_BOUND_PCT
from gpu_exec.validate import Origin
from oasis_sim.errors import InputError, RunFailed, UsageError
from oasis_sim.fileio import loads_yaml
from oasis_sim.hardware import HardwareProfile, profile_of
from oasis_sim.model import ModelShape

LINK_BYTES = 1 << 30
READ_BYTES = 4 << 30
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@dataclass(frozen=True)
class CalibrationResult:
    """Hold the profile's text and every reading behind it."""

    profile_text: str
    readings: dict[str, Any]
    unstable: tuple[str, ...]

    def check(self) -> None:
        """Raise RunFailed when rounds of a probe differ by more than the bound."""
        if self.unstable:
            raise RunFailed(
                f"{len(self.unstable)} probes are not repeatable within {REPEAT_BOUND_PCT:g} %: "
                f"{'; '.join(self.unstable[:3])}; see `oasis-sim doctor` for what disturbs the "
                "card, or take their means with --keep-unstable"
            )


def refuse_bad_card(run: Runner = run_query, expected: int = 0) -> None:
    """Raise RunFailed when the card is shared, throttled or split.

    `expected` is how many processes of our own use it: none before the first, one after.
    """
    reasons = refusal(query_gpus(run), compute_processes(run), expected)
    if reasons:
        raise RunFailed(f"this card gives no numbers to keep: {'; '.join(reasons)}")


def profile_name(title: str) -> str:
    """Return a file name for a card: NVIDIA H200 becomes nvidia-h200."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:64] or "card"


def run_calibration(
    book: Notebook, base: HardwareProfile, model: ModelShape, name: str, origin: Origin
) -> CalibrationResult:
    """Measure every probe and return the profile; the base gives what one card cannot show."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no profile name; use letters, digits, '.', '_' and '-'")
    bench = book.bench
    limits = _limits(book)
    _check_base(limits, base)
    engine = base.engine("gpu_exec") if "gpu_exec" in base.engines else base.engine("roofline")
    kept = Kept.of(engine)
    source = (
        f"measured by `oasis-sim calibrate` on one {bench.card.name} (driver {bench.card.driver}, "
        f"{bench.card.software}) with {model.name} shapes, {origin.date}; experts, prefill, "
        f"collective, hbm_share and reserved are kept from profile {base.name}, not measured "
        "(docs/hardware-profiles.md)"
    )
    costs = Calibration(book, base, model, kept).costs(source)
    unstable = tuple(f"{p} ({found.repeat_pct:.1f} %)" for p, found in book.unstable.items())
    shaky = unstable_transports(book)
    if shaky:
        text = f"{' and '.join(shaky)} gave readings that do not repeat (their means are used)"
        costs = replace(costs, source=f"{source}; {text}")
    header = (
        f"Hardware profile {name}: limits of profile {base.name}, engine gpu_exec measured.",
        f"card {bench.card.name}, driver {bench.card.driver}, {bench.card.software}",
        f"date {origin.date}, commit {origin.commit}",
        f"command: {origin.command}",
        f"Every probe comes back within {REPEAT_BOUND_PCT:g} %."
        if not unstable
        else f"NOT REPEATABLE within {REPEAT_BOUND_PCT:g} %: {'; '.join(unstable)}",
    )
    text = profile_yaml(name, base, limits, costs, header)
    _check_readable(text, name)
    return CalibrationResult(text, _raw(origin, book), unstable)


def _check_base(limits: MeasuredLimits, base: HardwareProfile) -> None:
    """Raise RunFailed when the card is faster than the profile that should give its limits."""
    for what, found, limit in (
        ("reads HBM at", limits.read_bytes_per_s, base.gpu.hbm_bytes_per_s),
        ("copies from the host at", limits.h2d_bytes_per_s, base.pcie.bytes_per_s),
        ("copies to the host at", limits.d2h_bytes_per_s, base.pcie.bytes_per_s),
    ):
        if found > limit:
            raise RunFailed(
                f"the card {what} {found / 1e9:,.4g} GB/s, and profile {base.name} says "
                f"{limit / 1e9:,.4g} at most; give --base the profile of this card, or see what is "
                "wrong with the readings"
            )


def _check_readable(text: str, name: str) -> None:
    """Raise RunFailed for a profile that no command would read: readings without sense."""
    try:
        profile_of(loads_yaml(text, name), Path(name))
    except InputError as error:
        raise RunFailed(f"the readings make no profile: {error}") from None


def unstable_transports(book: Notebook) -> list[str]:
    """Return the transports of which a reading did not repeat."""
    probes = [probe for probe in book.unstable if isinstance(probe, StepProbe)]
    return sorted({probe.transport for probe in probes if TRANSFER in probe.stages})


def _limits(book: Notebook) -> MeasuredLimits:
    return MeasuredLimits(
        hbm_bytes=book.bench.card.hbm_bytes,
        read_bytes_per_s=READ_BYTES / book.ms(ReadProbe(READ_BYTES)) * 1e3,
        h2d_bytes_per_s=LINK_BYTES / book.ms(LinkProbe("h2d", LINK_BYTES)) * 1e3,
        d2h_bytes_per_s=LINK_BYTES / book.ms(LinkProbe("d2h", LINK_BYTES)) * 1e3,
    )


def _raw(origin: Origin, book: Notebook) -> dict[str, Any]:
    """Return every reading as plain data: kind of probe, its parameters, ms of its rounds."""
    return {
        "format": "oasis-calibration",
        "version": 2,
        **asdict(origin),
        "card": asdict(book.bench.card),
        "readings": [
            {
                "probe": type(probe).__name__,
                **asdict(probe),
                "value_ms": found.value_ms,
                "repeat_pct": found.repeat_pct,
                "rounds_ms": list(found.rounds_ms),
            }
            for probe, found in book.readings.items()
        ],
    }
