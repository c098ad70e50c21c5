"""The exception tree and the process exit codes.

    OasisError
    |- RunFailed        1   the run could not be completed
    |- UsageError       2   options that contradict each other
    |- InputError       3   a file or value that cannot be used
    |- TargetMissed     4   a service-level objective or validation bound was missed
    `- GpuUnavailable   5   no usable GPU

Exit code 0 means done, 130 interrupted.
"""

from __future__ import annotations

from pathlib import Path

EXIT_INTERRUPTED = 130


class OasisError(Exception):
    """Carry one message for the user and the exit code that goes with it."""

    exit_code = 1


class RunFailed(OasisError):
    """Report a run that could not be completed."""

    exit_code = 1


class UsageError(OasisError):
    """Report options that contradict each other or name nothing known."""

    exit_code = 2


class InputError(OasisError):
    """Report an input that cannot be used: where, what is wrong, what to do.

    The message reads ``file:line: field: problem; fix`` with the parts that are known.
    """

    exit_code = 3

    def __init__(
        self,
        problem: str,
        *,
        file: str | Path | None = None,
        line: int | None = None,
        field: str | None = None,
        fix: str | None = None,
    ) -> None:
        self.problem = problem
        self.file = None if file is None else str(file)
        self.line = line
        self.field = field
        self.fix = fix
        where = self.file or ""
        if line is not None:
            where = f"{where}:{line}" if where else f"line {line}"
        parts = [part for part in (where, field) if part]
        text = ": ".join([*parts, problem])
        super().__init__(f"{text}; {fix}" if fix else text)


class TargetMissed(OasisError):
    """Report a target (SLO, validation bound) that was missed."""

    exit_code = 4


class GpuUnavailable(OasisError):
    """Report that no usable GPU is there, and what is missing."""

    exit_code = 5
