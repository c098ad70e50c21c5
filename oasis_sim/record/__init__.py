"""Record attention traces of real models.

This package's own imports need neither torch nor transformers; ``load_recorded_model``, ``record``
and ``record_all`` import them when they are called.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

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
from oasis_sim.record.sources import (
    SourceChat,
    chat_prompt,
    check_token_ids,
    load_chat,
    token_prompt,
)

if TYPE_CHECKING:
    from oasis_sim.record.recorder import Recording

__all__ = [
    "ProgressLines",
    "Prompt",
    "PromptRequest",
    "RecordOptions",
    "RecordedModel",
    "SourceChat",
    "SourceText",
    "build_prompt",
    "chat_prompt",
    "check_token_ids",
    "load_chat",
    "load_recorded_model",
    "load_text",
    "record",
    "record_all",
    "token_prompt",
]


def record(
    model: RecordedModel,
    prompt: Prompt,
    options: RecordOptions,
    *,
    name: str,
    progress: ProgressCallback = no_progress,
) -> Recording:
    """Record a model's attention on a prompt, with the options' block size."""
    names = {options.block_tokens: name}
    return next(record_all(model, prompt, options, names=names, progress=progress))


def record_all(
    model: RecordedModel, prompt: Prompt, options: RecordOptions, **settings: Any
) -> Iterator[Recording]:
    """Record several block sizes at once; see ``oasis_sim.record.recorder.record_traces``."""
    from oasis_sim.record.recorder import record_traces

    return record_traces(model, prompt, options, **settings)
