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
from oasis_sim.quality.options import QualityOptions, check_caps
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
    path: Trajectory | None = None,
) -> QualityResult:
    """Decode the same tokens with full attention and with each scheme, and compare.

    ``backend`` attends; without one the reference does. ``path`` is a trajectory made before, by
    ``follow`` of the same prompt and options; without one it is made here. What is finished is kept in the folder
    ``checkpoint`` until all is. Raises InputError when options, prompt and model do not fit each
    other or the model does not understand the prompt; UsageError for schemes of another block
    size than the options name, and for a drafter that cannot follow a text of its own.
    """
    for scheme in schemes:
        if scheme.block_tokens != options.decode.block_tokens:
            raise UsageError(
                f"scheme {scheme.name} has blocks of {scheme.block_tokens} tokens, "
                f"the study {options.decode.block_tokens}"
            )
    check_caps(schemes, options)
    check_room(model, prompt, options.decode)
    backend = backend or Reference()
    drafter = _drafter(model, schemes, options)
    plans = {plan_of(scheme, options): scheme for scheme in schemes}
    parts = Parts()
    if checkpoint is not None:
        parts = FolderParts(
            checkpoint, _identity(model, prompt, options, list(plans), drafter, backend)
        )
    with torch.inference_mode():
        path = path or follow(model, prompt, options.decode, progress, parts)
        start = Start.after_prompt(
            path,
            options.decode.block_tokens,
            options.decode.bound_join,
            kv_16bit=options.kv_16bit,
        )
        if rank := next(iter(plans)).index.rank:
            start = replace(start, low_rank=low_rank_keys(model, start, rank))
        decoding = Decoding.of(
            model,
            path,
            start,
            drafter,
            free_run=options.free_run,
            backend=backend,
            progress=progress,
        )
        full = parts.get("full", decoding.full)
        rows = _decode_plans(decoding, list(plans), full, parts)
    boot = BlockBootstrap(path.steps - 1, resamples=options.resamples, seed=options.bootstrap_seed)
    summary = _Summary(decoding, model.head_dim, full, boot)
    cases = [summary.case(scheme, rows[plan_of(scheme, options)]) for scheme in schemes]
    if options.step_caps:
        cases = [replace(case, step_caps=options.step_caps) for case in cases]
    facts = _facts(model, prompt, path, options, boot)
    facts |= {
        "drafter": None if drafter is None else drafter.name,
        "scheme": schemes[0].name,
        "key_index": next(iter(plans)).index.kind,
        "full_attention_nll": summary.full_nll(),
        "device": model.device,
        **backend.header(),
    }
    if isinstance(parts, FolderParts):
        parts.remove()
    return QualityResult(facts, collect(cases, boot))


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


def _identity(
    model: RecordedModel,
    prompt: Prompt,
    options: QualityOptions,
    plans: Sequence[LoopPlan],
    drafter: Drafter | None,
    backend: Backend,
) -> dict[str, Any]:
    """Return what makes a study the same bytes: its checkpoint may serve no other."""
    tokens = json.dumps([prompt.tokens, prompt.following]).encode()
    return {
        "study": "quality",
        "model": model.header(),
        "device": model.device,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "tokens_sha256": hashlib.sha256(tokens).hexdigest(),
        "options": asdict(options),
        "cases": [asdict(plan) for plan in plans],
        "drafter": None if drafter is None else drafter.header(),
        **backend.header(),
    }


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
