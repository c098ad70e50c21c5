"""Quality of a scheme: a real model decoded sparsely, beside full attention.

This package's own imports need no torch; ``measure_quality`` imports it when it is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oasis_sim.quality.options import QualityOptions, applicable, own_units, vary_scheme
from oasis_sim.quality.result import CaseQuality, QualityResult
from oasis_sim.record import Prompt, RecordedModel
from oasis_sim.record.progress import ProgressCallback, no_progress
from oasis_sim.scheme import Scheme

if TYPE_CHECKING:
    from oasis_sim.quality.backend import Backend

__all__ = [
    "CaseQuality",
    "QualityOptions",
    "QualityResult",
    "applicable",
    "measure_quality",
    "own_units",
    "vary_scheme",
]


def measure_quality(
    model: RecordedModel,
    prompt: Prompt,
    schemes: Sequence[Scheme],
    options: QualityOptions,
    progress: ProgressCallback = no_progress,
    *,
    checkpoint: Path | None = None,
    backend: Backend | None = None,
) -> QualityResult:
    """Decode a model sparsely by each scheme; see ``oasis_sim.quality.study.run_study``."""
    from oasis_sim.quality.study import run_study

    return run_study(
        model, prompt, schemes, options, progress, checkpoint=checkpoint, backend=backend
    )
