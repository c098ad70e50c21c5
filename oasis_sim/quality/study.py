"""Run a study: prefill once, decode with full attention, then with each scheme."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oasis_sim.errors import UsageError
from oasis_sim.quality.backend import Backend, LoopPlan, Reference
from oasis_sim.quality.bootstrap import CONFIDENCE, METHOD, BlockBootstrap
from oasis_sim.quality.decode import ALIKE, COUNTED, Decoding, log_shares, plan_of
from oasis_sim.quality.lowrank import low_rank_keys
from oasis_sim.quality.measure import StepQuality, collect, compare_texts, summarise
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

    ``backend`` attends; without one the reference does. What is finished is kept in the folder
    ``checkpoint`` until all is. Raises InputError when options, prompt and model do not fit each
    other or the model does not understand the prompt; UsageError for schemes of another block
    size than the options name, and for a drafter that cannot follow a text of its own.
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
class _Study:
    """Hold what is compared on what, checked."""

    model: RecordedModel
    prompt: Prompt
    schemes: tuple[Scheme, ...]
    options: QualityOptions
    progress: ProgressCallback
    backend: Backend
    drafter: Drafter | None
    plans: tuple[LoopPlan, ...]

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
        for scheme in schemes:
            if scheme.block_tokens != options.decode.block_tokens:
                raise UsageError(
                    f"scheme {scheme.name} has blocks of {scheme.block_tokens} tokens, "
                    f"the study {options.decode.block_tokens}"
                )
        check_caps(schemes, options)
        check_room(model, prompt, options.decode)
        drafter = _drafter(model, schemes, options)
        plans = tuple(dict.fromkeys(plan_of(scheme, options) for scheme in schemes))
        attending = backend or Reference()
        return cls(model, prompt, tuple(schemes), options, progress, attending, drafter, plans)

    def along(self, path: Trajectory, parts: Parts) -> QualityResult:
        """Decode along a trajectory."""
        options = self.options
        start = self._start(path)
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
        rows = _decode_plans(decoding, self.plans, full, parts)
        boot = BlockBootstrap(
            path.steps - 1, resamples=options.resamples, seed=options.bootstrap_seed
        )
        summary = _Summary(decoding, self.model.head_dim, full, boot)
        cases = [summary.case(each, rows[plan_of(each, options)]) for each in self.schemes]
        cases = [replace(case, step_caps=options.step_caps) for case in cases]
        facts = _facts(self.model, self.prompt, path, options, boot)
        facts |= {
            "drafter": None if self.drafter is None else self.drafter.name,
            "scheme": self.schemes[0].name,
            "key_index": self.plans[0].index.kind,
            "approximations": list(approximations(self.schemes[0])),
            "full_attention_nll": summary.full_nll(),
            "device": self.model.device,
            **self.backend.header(),
        }
        return QualityResult(facts, collect(cases, boot))

    def _start(self, path: Trajectory) -> Start:
        """Return the state after the prompt."""
        options = self.options
        start = Start.after_prompt(
            path,
            options.decode.block_tokens,
            options.decode.bound_join,
            kv_16bit=options.kv_16bit,
        )
        if rank := self.plans[0].index.rank:
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
            "cases": [asdict(plan) for plan in self.plans],
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
    decoding: Decoding, plans: Sequence[LoopPlan], full: Part, parts: Parts
) -> dict[LoopPlan, Part]:
    """Decode some plans at a time, or take what was kept; return each one's arrays."""
    rows: dict[LoopPlan, Part] = {}
    for first in range(0, len(plans), SIDE_BY_SIDE):
        batch = plans[first : first + SIDE_BY_SIDE]
        name = f"cases {first + 1} to {first + len(batch)} of {len(plans)}"

        def decode(batch: Sequence[LoopPlan] = batch, name: str = name) -> Part:
            return decoding.sparse(batch, full["logits"], name)

        part = parts.get(f"cases-{first:04d}", decode)
        for row, plan in enumerate(batch):
            rows[plan] = {key: value[row] for key, value in part.items()}
    return rows


@dataclass(frozen=True, eq=False)
class _Summary:
    """Turn what was decoded into numbers."""

    decoding: Decoding
    head_dim: int
    full: Part
    boot: BlockBootstrap

    def full_nll(self) -> float:
        """Return the mean NLL of the trajectory after step 0 by full attention."""
        after = self.decoding.tokens[2:]
        shares = log_shares(self.full["logits"][1:])
        return -float(shares[np.arange(len(after)), list(after)].mean())

    def case(self, scheme: Scheme, row: Part) -> CaseQuality:
        """Return a scheme's quality, before cases are compared."""
        kl, agreement, nll = row["outputs"].numpy()
        needed, admitted, overlap, mass = (row[name].numpy() for name in COUNTED)
        alike = row[ALIKE].numpy() if ALIKE in row else None
        steps = StepQuality(kl, agreement, nll, mass, overlap, needed, admitted, alike)
        layers = self.decoding.start.full_layers
        estimates, traffic, by_layer, stretches = summarise(
            scheme, steps, layers, self.head_dim, self.boot
        )
        case = CaseQuality(
            scheme,
            estimates,
            traffic,
            by_layer,
            stretches,
            tuple(kl[1:].tolist()),
            draft_accepted=self.decoding.accepted(scheme),
        )
        if "text" in row:
            more = float(row["text_nll"]) - float(self.full["text_nll"][0])
            texts = self.full["text"][0].tolist(), row["text"].tolist()
            case = replace(case, free_run=compare_texts(*texts, more))
        return case


def _facts(
    model: RecordedModel,
    prompt: Prompt,
    path: Trajectory,
    options: QualityOptions,
    boot: BlockBootstrap,
) -> dict[str, Any]:
    """Return what was decoded, and how errors were estimated."""
    return {
        "model": model.header(),
        "text": {**prompt.header, "perplexity": path.perplexity},
        "prompt_tokens": path.prompt_tokens,
        "steps": path.steps,
        "trajectory": options.decode.trajectory_header(),
        "block_tokens": options.decode.block_tokens,
        "bound_join": options.decode.bound_join,
        "kv_dtype": "bfloat16" if options.kv_16bit else model.dtype,
        "interval": {
            "method": METHOD,
            "confidence": CONFIDENCE,
            "block_steps": boot.block_steps,
            "resamples": options.resamples,
            "seed": options.bootstrap_seed,
        },
    }
