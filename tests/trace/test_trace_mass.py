"""The 8-bit code of attention mass."""

from __future__ import annotations

import numpy as np
import pytest

from oasis_sim.errors import InputError
from oasis_sim.trace import decode_mass, encode_mass


def test_every_code_survives_a_round_trip() -> None:
    """Decoding and encoding again gives the same 256 codes."""
    codes = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(codes, encode_mass(decode_mass(codes)))


def test_ends_of_the_code() -> None:
    """Code 0 is no mass, 255 is all of it, 1 is the smallest."""
    np.testing.assert_allclose(
        [0.0, 1.0, 2.0 ** (16 / 255 - 16)],
        decode_mass(np.array([0, 255, 1], dtype=np.uint8)),
        rtol=1e-15,
    )


def test_step_is_within_half_a_code() -> None:
    """Any mass above the floor is kept within 2.2 %."""
    mass = np.geomspace(2.0**-15.9, 1.0, 5000)
    error = np.abs(decode_mass(encode_mass(mass)) / mass - 1.0)
    assert error.max() < 2.0 ** (8 / 255) - 1.0 + 1e-12


def test_tiny_mass_becomes_none_and_rounding_above_one_is_kept() -> None:
    """Values outside the code fall on its ends."""
    np.testing.assert_array_equal([0, 0, 255], encode_mass([0.0, 1e-9, 1.0000001]))


@pytest.mark.parametrize("bad", [-0.1, float("nan")])
def test_mass_that_is_no_mass_is_refused(bad: float) -> None:
    """Negative mass and NaN raise, never wrap around."""
    with pytest.raises(InputError, match="mass"):
        encode_mass([0.5, bad])
