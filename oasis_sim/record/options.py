"""What to record: the options of one recording, checked, and their small languages."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from oasis_sim.errors import InputError

TRAJECTORIES = ("greedy", "sample", "text")
BOUND_JOINS = ("max", "mean", "softmax-mean", "min")
"""How the bounds of a group's query heads become one score per block."""

MASS_JOINS = ("mean", "max")
"""How the attention masses of a group's query heads become one."""

FULL_LAYERS = "full"
_MOST_STEPS = 1 << 20
_MOST_TOKENS = 1 << 22
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6})(?::(\d{1,6}))?)?", re.ASCII)
_SKIP = re.compile(r"skip(?:(\d{1,6})-(\d{1,6}))?", re.ASCII)


@dataclass(frozen=True)
class RecordOptions:
    """Say what to record of a model on a prompt.

    ``trajectory`` is where the tokens after the prompt come from: the model's likeliest token, one
    drawn at ``temperature`` with ``seed``, or the text itself. ``stored_blocks`` None keeps whole
    orders. The draft row attends ``draft_budget_tokens`` of predicted blocks, and on top of them
    the first ``sink_blocks`` and the newest ``recent_blocks`` (1 = the block being filled).
    ``bound_join`` and ``mass_join`` say how the query heads of a group become one order and one
    mass. ``max_perplexity`` refuses a model that does not understand its prompt. Raises
    InputError for a value out of range.
    """

    steps: int = 64
    trajectory: str = "greedy"
    temperature: float = 0.8
    seed: int = 0
    ignore_eos: bool = False
    block_tokens: int = 16
    stored_blocks: int | None = None
    layers: str = "all"
    mass: bool = True
    drafters: tuple[str, ...] = ("skip", "ngram")
    draft_budget_tokens: int = 2048
    sink_blocks: int = 0
    recent_blocks: int = 1
    bound_join: str = "max"
    mass_join: str = "mean"
    chunk_tokens: int = 256
    max_perplexity: float = 100.0

    def __post_init__(self) -> None:
        """Check every field."""
        _check_range("steps", self.steps, 2, _MOST_STEPS)
        _check_range("seed", self.seed, 0, (1 << 53) - 1)
        if not 0.01 <= self.temperature <= 100.0:
            raise InputError(
                f"{self.temperature!r} is out of range", field="temperature", fix="use 0.01 to 100"
            )
        _check_range("block_tokens", self.block_tokens, 1, 4096)
        if self.stored_blocks is not None:
            _check_range("stored_blocks", self.stored_blocks, 1, 65_535)
        _check_range("draft_budget_tokens", self.draft_budget_tokens, 1, _MOST_TOKENS)
        _check_range("sink_blocks", self.sink_blocks, 0, 65_535)
        _check_range("recent_blocks", self.recent_blocks, 1, 65_535)
        _check_range("chunk_tokens", self.chunk_tokens, 1, 1 << 16)
        _check_choice("trajectory", self.trajectory, TRAJECTORIES)
        _check_choice("bound_join", self.bound_join, BOUND_JOINS)
        _check_choice("mass_join", self.mass_join, MASS_JOINS)
        if math.isnan(self.max_perplexity) or self.max_perplexity <= 1.0:
            raise InputError(
                "must be a number above 1", field="max_perplexity", fix="the default is 100"
            )
        if self.draft_budget_tokens % self.block_tokens:
            raise InputError(
                f"{self.draft_budget_tokens} tokens are not whole blocks of {self.block_tokens}",
                field="draft_budget_tokens",
                fix=f"use a multiple of {self.block_tokens}",
            )
        if len(set(self.drafters)) != len(self.drafters):
            raise InputError("names a drafter twice", field="drafters", fix="name each once")

    def trajectory_header(self) -> dict[str, str | float | int]:
        """Return what the trace header says of the trajectory."""
        header: dict[str, str | float | int] = {"source": self.trajectory}
        if self.trajectory == "sample":
            header.update(temperature=self.temperature, seed=self.seed)
        return header

    @property
    def chosen_blocks(self) -> int:
        """Return the predicted blocks that the draft row attends."""
        return self.draft_budget_tokens // self.block_tokens


def _check_choice(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise InputError(
            f"unknown {name.replace('_', ' ')} {value[:40]!r}",
            field=name,
            fix=f"use one of: {', '.join(known)}",
        )


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InputError(f"{value!r} is out of range", field=name, fix=f"use {low} to {high}")


def parse_layers(spec: str, model_layers: int) -> tuple[int, ...]:
    """Return the layers named by ``all`` or a list such as ``0-29:3`` or ``0,5,10-12``, sorted.

    A range includes its end; ``:3`` takes every third layer of it. Raises InputError for what is
    no such list and for layers that the model does not have.
    """
    if spec.strip() == "all":
        return tuple(range(model_layers))
    chosen: set[int] = set()
    for part in spec.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise InputError(
                f"{part.strip()[:40]!r} is neither a layer nor a range",
                field="layers",
                fix="write 'all', 'full', '0,5,9' or '0-29:3'",
            )
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        stride = int(match[3]) if match[3] else 1
        if last >= model_layers or first > last or stride < 1:
            raise InputError(
                f"{part.strip()!r} lies outside layers 0 to {model_layers - 1} or is empty",
                field="layers",
                fix=f"use layers 0 to {model_layers - 1}, smaller number first",
            )
        chosen.update(range(first, last + 1, stride))
    return tuple(sorted(chosen))


def parse_drafter(name: str, model_layers: int) -> tuple[str, tuple[int, ...]]:
    """Return a drafter's full name and the layers that it skips (none for ``ngram``).

    ``skip`` alone leaves out the middle eighth of the layers, ``skip12-17`` leaves out layers 12
    to 17, both included. Raises InputError for an unknown name or impossible layers.
    """
    if name == "ngram":
        return name, ()
    match = _SKIP.fullmatch(name)
    if match is None:
        raise InputError(
            f"unknown drafter {name[:40]!r}",
            field="drafter",
            fix="use ngram, skip, or skipA-B with the layers to leave out, as in skip12-17; record "
            "also knows oracle, model:PATH and eagle3:FOLDER",
        )
    if match[1] is None:
        count = max(1, round(model_layers / 8))
        first = (model_layers - count) // 2
        last = first + count - 1
    else:
        first, last = int(match[1]), int(match[2])
    if not 0 < first <= last < model_layers - 1:
        raise InputError(
            f"{name!r}: layers {first} to {last} cannot be left out",
            field="drafter",
            fix=f"keep the first and the last of the {model_layers} layers, smaller number first",
        )
    return f"skip{first}-{last}", tuple(range(first, last + 1))
