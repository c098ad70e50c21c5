"""How often something is measured: by rule, and never until it happens to agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exec.probes import (
    LINEAR,
    SPREAD_EVERY,
    TRANSFER,
    Card,
    GapProbe,
    Notebook,
    Probe,
    StepProbe,
)
from gpu_exec.rounds import (
    HOST_ROUNDS,
    LONG,
    LONG_ROUNDS,
    ROUNDS,
    SPREAD_ROUNDS,
    mean_of,
    take_rounds,
)


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
    found = take_rounds(clock.measure)
    assert (1,) * ROUNDS == tuple(clock.asked)
    assert pytest.approx(3.01 / 3) == found.value_ms
    assert pytest.approx(100 * 0.03 * 3 / 3.01) == found.repeat_pct
    assert found.repeatable


def test_rounds_that_disagree_are_replaced_by_long_ones() -> None:
    """The value is that of the long rounds alone; all are kept."""
    clock = Clock(1.0, 1.2, 1.0, 2.0)
    found = take_rounds(clock.measure)
    assert [1] * ROUNDS + [LONG] * LONG_ROUNDS == clock.asked
    assert (1.0, 1.2, 1.0) + (2.0,) * LONG_ROUNDS == found.rounds_ms
    assert (2.0, 0.0) == (found.value_ms, found.repeat_pct)


def test_long_rounds_that_disagree_end() -> None:
    """Their number is fixed, and the result says that it does not come back."""
    clock = Clock(*(1.0 + 0.3 * (i % 2) for i in range(99)))
    found = take_rounds(clock.measure)
    assert ROUNDS + LONG_ROUNDS == len(clock.asked)
    assert not found.repeatable


@pytest.mark.parametrize(
    ("probe", "rounds"),
    [
        (StepProbe((LINEAR,), 8), LONG_ROUNDS),
        (StepProbe((LINEAR,), 8, transport="copy_engine"), LONG_ROUNDS),
        (StepProbe((LINEAR, TRANSFER), 8, per_head=1.0), LONG_ROUNDS),
        (StepProbe((TRANSFER,), 8, transport="copy_engine", per_head=1.0), HOST_ROUNDS),
        (StepProbe((LINEAR, TRANSFER), 8, transport="naive", per_head=1.0), HOST_ROUNDS),
    ],
)
def test_copies_by_the_host_are_measured_more_often(probe: Probe, rounds: int) -> None:
    """Where short rounds disagree; what the GPU does by itself comes back sooner."""
    clock = Clock(*(1.0 + 0.3 * (i % 2) for i in range(99)))

    class Bench:
        card = Card("FAKE", "580", 132, 1, "none")

        def measure_ms(self, _probe: Probe, length: int, /) -> float:
            return clock.measure(length)

    Notebook(Bench()).ms(probe)
    assert [1] * ROUNDS + [LONG] * rounds == clock.asked


@given(times=st.lists(st.floats(0.9, 1.1), min_size=2, max_size=30), scale=st.floats(0.01, 100))
def test_how_well_it_comes_back_has_no_unit(times: list[float], scale: float) -> None:
    """Seconds or hours, the mean lies within the rounds and the percentage stays."""
    found, scaled = (mean_of([factor * t for t in times]) for factor in (1.0, scale))
    assert min(times) * (1 - 1e-12) <= found.value_ms <= max(times) * (1 + 1e-12)
    assert pytest.approx(found.repeat_pct, abs=1e-6) == scaled.repeat_pct


def test_spread_rounds_lie_between_those_of_others() -> None:
    """They are taken after every few steps; its reading is the mean of all of them."""
    spread, asked = StepProbe((TRANSFER,), 8, per_head=1.0), []

    class Bench:
        card = Card("FAKE", "580", 132, 1, "none")

        def measure_ms(self, probe: Probe, length: int, /) -> float:
            asked.append((probe, length))
            return float(len(asked)) if probe == spread else 1.0

    book = Notebook(Bench())
    book.spread(spread)
    for batch in range(1, 2 * SPREAD_EVERY + 1):
        book.ms(StepProbe((LINEAR,), batch))
    book.ms(GapProbe())
    places = [place for place, (probe, _) in enumerate(asked) if probe == spread]
    assert [ROUNDS * SPREAD_EVERY, 2 * ROUNDS * SPREAD_EVERY + 1] == places
    value = book.ms(spread)
    rounds = book.readings[spread].rounds_ms
    assert SPREAD_ROUNDS == len(rounds) == sum(probe == spread for probe, _ in asked)
    assert {(spread, LONG)} == {entry for entry in asked if entry[0] == spread}
    assert pytest.approx(sum(rounds) / SPREAD_ROUNDS) == value
    book.ms(StepProbe((LINEAR,), 99))
    assert SPREAD_ROUNDS == sum(probe == spread for probe, _ in asked)
