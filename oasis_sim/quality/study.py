"""Run a study: prefill once, decode with full attention, then with each scheme."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from oasis_sim.quality.backend import Backend, LoopPlan, Reference
from oasis_sim.quality.bootstrap import BlockBootstrap
from oasis_sim.quality.cases import Summary, facts_of
from oasis_sim.quality.decode import Decoding, plan_of
from oasis_sim.quality.lowrank import low_rank_keys
from oasis_sim.quality.measure import collect
from oasis_sim.quality.options import QualityOptions, approximations, check_caps
from oasis_sim.quality.result import CaseQuality, QualityResult
from oasis_sim.quality.start import Start
from oasis_sim.record.backend import RecordedModel
from oasis_sim.record.checkpoint import FolderParts, Part, Parts
from oasis_sim.record.choose_drafters import choose_drafters
from oasis_sim.record.drafters import Drafter
from oasis_sim.record.progress import ProgressCallback, no_progress
from oasis_sim.record.prompt import Prompt
from oasis_sim.record.recorder import check_room
from oasis_sim.record.trajectory import Trajectory, follow
from oasis_sim.residency.predict import DRAFT
from oasis_sim.scheme import Scheme

SIDE_BY_SIDE = 16
"""Schemes decoded at once, as rows of the same passes: the weights are read once for all."""


def run_study(
    model: RecordedModel,
    prompt: Prompt,
    schemes: Sequence[Scheme],
    options: QualityOptions,
    progress: ProgressCallback = no_progress,
    *,
    checkpoint: Path | None = None,
    backend: Backend | None = None,
) -> QualityResult:
    """Decode the same tokens with full attention and with each scheme, and compare.

    Schemes of one name may differ in budget, cap and predictor only; they are decoded side by side,
    those of another name after them. ``backend`` attends; without one the reference does. What is
    finished is kept in the folder ``checkpoint`` until all is. Raises InputError when options,
    prompt and model do not fit each other or the model does not understand the prompt; UsageError
    for a drafter that cannot follow a text of its own.
    """
    study = _Study.of(model, prompt, schemes, options, progress, backend)
    parts = Parts()
    if checkpoint is not None:
        parts = FolderParts(checkpoint, study.identity())
    with torch.inference_mode():
        path = follow(model, prompt, options.decode, progress, parts)
        result = study.along(path, parts)
    if isinstance(parts, FolderParts):
        parts.remove()
    return result


def study_trajectory(
    model: RecordedModel,
    prompt: Prompt,
    path: Trajectory,
    schemes: Sequence[Scheme],
    options: QualityOptions,
    progress: ProgressCallback = no_progress,
) -> QualityResult:
    """Compare along a trajectory that ``follow`` made of the same prompt and options."""
    with torch.inference_mode():
        return _Study.of(model, prompt, schemes, options, progress, None).along(path, Parts())


@dataclass(frozen=True, eq=False)
class _Group:
    """Hold the schemes of one name: blocks and index are the same, rules and predictors differ."""

    name: str
    block_tokens: int
    plans: tuple[LoopPlan, ...]
    approximations: tuple[str, ...]

    @classmethod
    def of(cls, schemes: Sequence[Scheme], options: QualityOptions) -> _Group:
        """Take schemes of one name; those of equal plans are decoded once."""
        plans = tuple(dict.fromkeys(plan_of(scheme, options) for scheme in schemes))
        first = schemes[0]
        return cls(first.name, first.block_tokens, plans, approximations(first))

    def header(self) -> dict[str, Any]:
        """Say how the group is decoded."""
        return {
            "name": self.name,
            "block_tokens": self.block_tokens,
            "key_index": self.plans[0].index.kind,
            "approximations": list(self.approximations),
        }


@dataclass(frozen=True, eq=False)
class _Study:
    """Hold what is compared on what, checked."""

    model: RecordedModel
    prompt: Prompt
    schemes: tuple[Scheme, ...]
    options: QualityOptions
    progress: ProgressCallback
    backend: Backend
    drafter: Drafter | None
    groups: tuple[_Group, ...]

    @classmethod
    def of(
        cls,
        model: RecordedModel,
        prompt: Prompt,
        schemes: Sequence[Scheme],
        options: QualityOptions,
        progress: ProgressCallback,
        backend: Backend | None,
    ) -> _Study:
        """Check that the parts fit each other."""
        check_caps(schemes, options)
        check_room(model, prompt, options.decode)
        drafter = _drafter(model, schemes, options)
        names = dict.fromkeys(scheme.name for scheme in schemes)
        groups = tuple(
            _Group.of([scheme for scheme in schemes if scheme.name == name], options)
            for name in names
        )
        attending = backend or Reference()
        return cls(model, prompt, tuple(schemes), options, progress, attending, drafter, groups)

    def along(self, path: Trajectory, parts: Parts) -> QualityResult:
        """Decode along a trajectory."""
        options = self.options
        start = Start.after_prompt(
            path, self.groups[0].block_tokens, options.decode.bound_join, kv_16bit=options.kv_16bit
        )
        decoding = Decoding.of(
            self.model,
            path,
            start,
            self.drafter,
            free_run=options.free_run,
            backend=self.backend,
            progress=self.progress,
        )
        full = parts.get("full", decoding.full)
        boot = BlockBootstrap(
            path.steps - 1, resamples=options.resamples, seed=options.bootstrap_seed
        )
        summary = Summary(decoding, self.model.head_dim, full, boot)
        cases: dict[int, CaseQuality] = {}
        for number, group in enumerate(self.groups):
            own = replace(decoding, start=self._start(start, group))
            rows = _decode_plans(own, group, full, parts, number)
            for index, scheme in enumerate(self.schemes):
                if scheme.name == group.name:
                    cases[index] = summary.case(scheme, rows[plan_of(scheme, options)])
        found = [replace(cases[index], step_caps=options.step_caps) for index in sorted(cases)]
        facts = facts_of(self.model, self.prompt, path, options, boot)
        facts |= {
            "drafter": None if self.drafter is None else self.drafter.name,
            "schemes": [group.header() for group in self.groups],
            "full_attention_nll": summary.full_nll(),
            "device": self.model.device,
            **self.backend.header(),
        }
        return QualityResult(facts, collect(found, boot))

    def _start(self, start: Start, group: _Group) -> Start:
        """Return the state after the prompt in a group's blocks."""
        start = replace(start, block_tokens=group.block_tokens)
        if rank := group.plans[0].index.rank:
            start = replace(start, low_rank=low_rank_keys(self.model, start, rank))
        return start

    def identity(self) -> dict[str, Any]:
        """Return what makes a study the same bytes: its checkpoint may serve no other."""
        tokens = json.dumps([self.prompt.tokens, self.prompt.following]).encode()
        return {
            "study": "quality",
            "model": self.model.header(),
            "device": self.model.device,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "tokens_sha256": hashlib.sha256(tokens).hexdigest(),
            "options": asdict(self.options),
            "schemes": [asdict(group) for group in self.groups],
            "drafter": None if self.drafter is None else self.drafter.header(),
            **self.backend.header(),
        }


def _drafter(
    model: RecordedModel, schemes: Sequence[Scheme], options: QualityOptions
) -> Drafter | None:
    """Return the drafter when some scheme predicts by drafts; its name is checked anyway."""
    (drafter,) = choose_drafters([options.drafter], model)
    return drafter if any(scheme.predictor == DRAFT for scheme in schemes) else None


def _decode_plans(
    decoding: Decoding, group: _Group, full: Part, parts: Parts, number: int
) -> dict[LoopPlan, Part]:
    """Decode some plans at a time, or take what was kept; return each one's arrays."""
    rows: dict[LoopPlan, Part] = {}
    count = len(group.plans)
    for first in range(0, count, SIDE_BY_SIDE):
        batch = group.plans[first : first + SIDE_BY_SIDE]
        name = f"{group.name}, cases {first + 1} to {first + len(batch)} of {count}"

        def decode(batch: Sequence[LoopPlan] = batch, name: str = name) -> Part:
            return decoding.sparse(batch, full["logits"], name)

        part = parts.get(f"cases-{number:02d}-{first:04d}", decode)
        for row, plan in enumerate(batch):
            rows[plan] = {key: value[row] for key, value in part.items()}
    return rows
