"""How often something is measured: by rule, and never until it happens to agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exec.probes import LINEAR, TRANSFER, GapProbe, Probe, StepProbe, host_bound
from gpu_exec.rounds import LONG, LONG_ROUNDS, PATIENT, PATIENT_ROUNDS, ROUNDS, take_rounds


class Clock:
    """Answer with given times, then with the last of them, and note the lengths asked for."""

    def __init__(self, *times: float) -> None:
        self._times = times
        self.asked: list[int] = []

    def measure(self, length: int) -> float:
        """Return the next time."""
        self.asked.append(length)
        return self._times[min(len(self.asked), len(self._times)) - 1]


def test_short_rounds_that_agree_are_enough() -> None:
    """Three rounds within 3 % give their mean."""
    clock = Clock(1.0, 1.02, 0.99)
    found = take_rounds(clock.measure, patient=False)
    assert (1,) * ROUNDS == tuple(clock.asked)
    assert pytest.approx(3.01 / 3) == found.value_ms
    assert pytest.approx(100 * 0.03 * 3 / 3.01) == found.repeat_pct
    assert found.repeatable


def test_rounds_that_disagree_are_replaced_by_long_ones() -> None:
    """The value is that of the long rounds alone; all are kept."""
    clock = Clock(1.0, 1.2, 1.0, 2.0)
    found = take_rounds(clock.measure, patient=False)
    assert [1] * ROUNDS + [LONG] * LONG_ROUNDS == clock.asked
    assert (1.0, 1.2, 1.0) + (2.0,) * LONG_ROUNDS == found.rounds_ms
    assert (2.0, 0.0) == (found.value_ms, found.repeat_pct)


def test_long_rounds_that_disagree_end() -> None:
    """Their number is fixed, and the result says that it does not come back."""
    clock = Clock(*(1.0 + 0.3 * (i % 2) for i in range(99)))
    found = take_rounds(clock.measure, patient=False)
    assert ROUNDS + LONG_ROUNDS == len(clock.asked)
    assert not found.repeatable


def test_what_the_host_limits_is_never_taken_from_short_rounds() -> None:
    """Three that agree by chance do not end it."""
    clock = Clock(1.0)
    found = take_rounds(clock.measure, patient=True)
    assert [PATIENT] * PATIENT_ROUNDS == clock.asked
    assert (1.0, 0.0) == (found.value_ms, found.repeat_pct)


@given(
    times=st.lists(st.floats(0.9, 1.1), min_size=PATIENT_ROUNDS, max_size=PATIENT_ROUNDS),
    scale=st.floats(0.01, 100),
)
def test_how_well_it_comes_back_has_no_unit(times: list[float], scale: float) -> None:
    """Seconds or hours, the mean lies within the rounds and the percentage stays."""
    found, scaled = (
        take_rounds(Clock(*(factor * t for t in times)).measure, patient=True)
        for factor in (1.0, scale)
    )
    assert min(times) * (1 - 1e-12) <= found.value_ms <= max(times) * (1 + 1e-12)
    assert pytest.approx(found.repeat_pct, abs=1e-6) == scaled.repeat_pct


def test_which_probes_the_host_limits() -> None:
    """Batches of small units, alone or beside work; nothing else."""
    small = StepProbe((LINEAR, TRANSFER), 8, transport="copy_engine", per_head=1.0)
    large = StepProbe((TRANSFER,), 8, block_tokens=32, transport="copy_engine", per_head=1.0)
    others: list[Probe] = [large, StepProbe((LINEAR,), 8, transport="copy_engine"), GapProbe()]
    assert host_bound(small)
    assert [False] * 3 == [host_bound(probe) for probe in others]
