"""A replay as text for a terminal."""

from __future__ import annotations

from gpu_exec.compare import StageRow
from gpu_exec.replay import ReplayReport
from oasis_sim.text import counted


def replay_lines(report: ReplayReport) -> list[str]:
    """Return the lines of a replay's table: device, notes, steps, stages, total."""
    reference = report.device.timing != "gpu"
    measured = "CPU ref. ms" if reference else "measured ms"
    devices = counted(report.device.devices, "device")
    head = f"{report.device.title}, {devices}, driver {report.device.driver}"
    lines = [f"replay of {report.source} on {head}"]
    lines += [f"note: {note}" for note in report.notes]
    head = f"{'step':>8} {'rows':>5} {'units':>10} {'bytes':>16} {'wrong':>6} "
    lines += ["", f"{head}{'simulated ms':>13} {measured:>12}"]
    for row in report.steps:
        lines.append(
            f"{row.step:>8,} {row.rows:>5,} {row.units_moved:>10,} {row.bytes_moved:>16,} "
            f"{row.wrong_units:>6,} {row.simulated_ms:>13,.3f} {row.measured_ms:>12,.3f}"
        )
    lines += ["", f"{'stage, per step':<18} {'simulated ms':>13} {measured:>12} {'error %':>8}"]
    lines += [_stage_line(row) for row in (*report.stages, report.step, report.total)]
    clocked_ms = report.step.clocked_ms
    if clocked_ms is not None:
        lines.append(f"stages are from steps with clocks in them, of {clocked_ms:,.3f} ms each")
    scheduled = sum(row.bytes_scheduled for row in report.steps)
    moved = sum(row.bytes_moved for row in report.steps)
    lines += [
        "",
        f"bytes scheduled {scheduled:,}, moved {moved:,}; "
        + ("every unit verified" if not report.problems else "NOT verified"),
    ]
    if report.all_reduces:
        checked, wrong = (
            sum(getattr(row, name) for row in report.steps)
            for name in ("sums_checked", "wrong_sums")
        )
        lines.append(f"elements of all-reduces checked {checked:,}, wrong {wrong:,}")
    return lines


def _stage_line(row: StageRow) -> str:
    measured = "-" if row.measured_ms is None else f"{row.measured_ms:,.3f}"
    error = "-" if row.error_pct is None else f"{row.error_pct:+.1f}"
    return f"{row.stage:<18} {row.simulated_ms:>13,.3f} {measured:>12} {error:>8}"
