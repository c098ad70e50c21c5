"""Settings of all tests: property tests are the same everywhere and never fail by the clock."""

from __future__ import annotations

import os

from hypothesis import settings

# HYPOTHESIS_PROFILE=explore looks for new examples instead of repeating the known ones.
settings.register_profile("repeat", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))
