"""The header of a recorded trace."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from oasis_sim import __version__
from oasis_sim.record.backend import RecordedModel
from oasis_sim.record.options import RecordOptions
from oasis_sim.record.prompt import Prompt
from oasis_sim.trace import MASS_CODE


@dataclass(frozen=True)
class RecordingFacts:
    """Hold what a recording found out, beside its model, prompt and options."""

    name: str
    layers: tuple[int, ...]
    spans: tuple[int | None, ...]
    prompt_tokens: int
    steps: int
    stored_blocks: int
    perplexity: float
    drafters: Mapping[str, Mapping[str, Any]]
    command: str
    attention: Mapping[str, Any]


def build_header(
    model: RecordedModel, prompt: Prompt, options: RecordOptions, facts: RecordingFacts
) -> dict[str, Any]:
    """Return the meta object of schema ``oasis-trace`` version 1."""
    rows = {
        "budget_tokens": options.draft_budget_tokens,
        "sink_blocks": options.sink_blocks,
        "recent_blocks": options.recent_blocks,
    }
    return {
        "format": "oasis-trace",
        "version": 1,
        "origin": "recorded",
        "name": facts.name,
        "model": model.header(),
        "layer_ids": list(facts.layers),
        "layer_span": list(facts.spans),
        "block_tokens": options.block_tokens,
        "prompt_tokens": facts.prompt_tokens,
        "steps": facts.steps,
        "stored_blocks": facts.stored_blocks,
        "aggregation": {"bound": options.bound_join, "mass": options.mass_join},
        "mass_code": MASS_CODE,
        "drafters": {name: {**about, "draft_row": rows} for name, about in facts.drafters.items()},
        "text": {
            **prompt.header,
            "perplexity": round(facts.perplexity, 4),
            "trajectory": options.trajectory_header(),
        },
        "recorder": f"oasis-sim {__version__} ({_packages()})",
        "recording": {
            "command": facts.command,
            "device": model.device,
            **facts.attention,
            "chunk_tokens": options.chunk_tokens,
            "python": platform.python_version(),
        },
    }


def _packages() -> str:
    """Name the versions of what computed the trace, as in ``torch 2.9.0, transformers 5.0.0``."""
    found = []
    for package in ("torch", "transformers", "gguf"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)
