"""Record attention traces of real models.

This package's own imports need neither torch nor transformers; ``load_recorded_model`` and
``record`` import them when they are called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oasis_sim.record.backend import RecordedModel, load_recorded_model
from oasis_sim.record.options import RecordOptions
from oasis_sim.record.progress import ProgressCallback, ProgressLines, no_progress
from oasis_sim.record.prompt import (
    Prompt,
    PromptRequest,
    SourceText,
    build_prompt,
    load_text,
)

if TYPE_CHECKING:
    from oasis_sim.record.recorder import Recording

__all__ = [
    "ProgressLines",
    "Prompt",
    "PromptRequest",
    "RecordOptions",
    "RecordedModel",
    "SourceText",
    "build_prompt",
    "load_recorded_model",
    "load_text",
    "record",
]


def record(
    model: RecordedModel,
    prompt: Prompt,
    options: RecordOptions,
    *,
    name: str,
    progress: ProgressCallback = no_progress,
) -> Recording:
    """Record a model's attention on a prompt; see ``oasis_sim.record.recorder.record_trace``."""
    from oasis_sim.record.recorder import record_trace

    return record_trace(model, prompt, options, name=name, progress=progress)
