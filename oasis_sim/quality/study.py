"""Run a study: prefill once, decode with full attention, then with each scheme."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oasis_sim.engine.walks import residency_rule
from oasis_sim.errors import UsageError
from oasis_sim.quality.bootstrap import CONFIDENCE, METHOD, BlockBootstrap
from oasis_sim.quality.loop import ClosedLoops, FullLoop, LoopPlan
from oasis_sim.quality.measure import (
    StepQuality,
    Values,
    collect,
    compare_texts,
    output_quality,
    summarise,
)
from oasis_sim.quality.options import QualityOptions
from oasis_sim.quality.result import CaseQuality, FreeRun, QualityResult
from oasis_sim.quality.rows import LoopLog
from oasis_sim.quality.start import Start
from oasis_sim.record.backend import RecordedModel
from oasis_sim.record.options import parse_drafter
from oasis_sim.record.progress import ProgressCallback, no_progress
from oasis_sim.record.prompt import Prompt
from oasis_sim.record.recorder import check_room
from oasis_sim.record.trajectory import Trajectory, follow
from oasis_sim.scheme import Scheme

SIDE_BY_SIDE = 8
"""Schemes decoded at once: each keeps a copy of the prompt's keys and values."""


def run_study(
    model: RecordedModel,
    prompt: Prompt,
    schemes: Sequence[Scheme],
    options: QualityOptions,
    progress: ProgressCallback = no_progress,
) -> QualityResult:
    """Decode the same tokens with full attention and with each scheme, and compare.

    Raises InputError when options, prompt and model do not fit each other or the model does not
    understand the prompt; UsageError for schemes of another block size than the options name.
    """
    for scheme in schemes:
        if scheme.block_tokens != options.decode.block_tokens:
            raise UsageError(
                f"scheme {scheme.name} has blocks of {scheme.block_tokens} tokens, "
                f"the study {options.decode.block_tokens}"
            )
    drafter, skipped = parse_drafter(options.drafter, model.layers)
    check_room(model, prompt, options.decode)
    with torch.inference_mode():
        path = follow(model, prompt, options.decode, progress)
        study = _Study(model, path, options, skipped, progress)
        full_nll = study.decode_full()
        boot = BlockBootstrap(
            path.steps - 1, resamples=options.resamples, seed=options.bootstrap_seed
        )
        found: list[tuple[CaseQuality, Values]] = []
        for first in range(0, len(schemes), SIDE_BY_SIDE):
            found += study.decode(schemes[first : first + SIDE_BY_SIDE], boot, first)
    facts = _facts(model, prompt, path, options, boot)
    facts |= {"drafter": drafter, "full_attention_nll": full_nll}
    cases = collect(schemes, [case for case, _ in found], [kl for _, kl in found], boot)
    return QualityResult(facts, cases)


class _Study:
    """Hold what the runs of a study share: the prompt's state and the reference."""

    def __init__(
        self,
        model: RecordedModel,
        path: Trajectory,
        options: QualityOptions,
        skipped: tuple[int, ...],
        progress: ProgressCallback,
    ) -> None:
        self._model = model
        self._options = options
        self._skipped = skipped
        self._progress = progress
        self._start = Start.after_prompt(path, options.decode.block_tokens)
        self._tokens = path.tokens[path.prompt_tokens :]
        self._full: list[Tensor] = []
        self._full_text: list[int] = []
        self._full_text_nll = 0.0

    def decode_full(self) -> float:
        """Decode with full attention; return the mean NLL of the trajectory after step 0."""
        loop = FullLoop(self._model, self._start)
        for step, token in enumerate(self._tokens[:-1]):
            self._progress("full attention", step, len(self._tokens) - 1)
            self._full.append(loop.step([token])[0])
        self._progress("full attention", len(self._full), len(self._full))
        if self._options.free_run:
            reader = FullLoop(self._model, self._start)
            self._full_text = self._write(reader, 1, "full attention")[0]
            self._full_text_nll = self._read(self._full_text)
        nll = [
            -float(_log_shares(logits)[token])
            for logits, token in zip(self._full, self._tokens[1:], strict=True)
        ]
        return float(np.mean(nll[1:]))

    def decode(
        self, schemes: Sequence[Scheme], boot: BlockBootstrap, first: int
    ) -> list[tuple[CaseQuality, Values]]:
        """Decode by some schemes side by side; return each one's quality and KL by step."""
        plans = [
            LoopPlan(residency_rule(scheme), scheme.predictor, self._skipped) for scheme in schemes
        ]
        name = f"schemes {first + 1} to {first + len(schemes)}"
        runs = self._follow(plans, name)
        texts = self._compare_texts(plans, name)
        cases = []
        for (steps, accepted), scheme, text in zip(runs, schemes, texts, strict=True):
            case = self._case(scheme, steps, boot)
            cases.append((replace(case, draft_accepted=accepted, free_run=text), steps.kl))
        return cases

    def _follow(
        self, plans: Sequence[LoopPlan], name: str
    ) -> list[tuple[StepQuality, float | None]]:
        """Decode the trajectory; return each plan's steps and its share of accepted drafts."""
        loops = ClosedLoops(self._model, self._start, plans)
        outputs: list[list[tuple[float, float, float]]] = [[] for _ in plans]
        for step, token in enumerate(self._tokens[:-1]):
            self._progress(name, step, len(self._full))
            full = _log_shares(self._full[step])
            for found, logits in zip(outputs, loops.step([token] * len(plans)), strict=True):
                quality = output_quality(full, _log_shares(logits), self._tokens[step + 1])
                found.append(quality)
        self._progress(name, len(self._full), len(self._full))
        return [
            (_step_quality(found, log), self._accepted(log))
            for found, log in zip(outputs, loops.logs, strict=True)
        ]

    def _case(self, scheme: Scheme, steps: StepQuality, boot: BlockBootstrap) -> CaseQuality:
        """Return a scheme's quality on the trajectory."""
        estimates, traffic, layers, stretches = summarise(
            scheme, steps, self._start.full_layers, self._model.head_dim, boot
        )
        return CaseQuality(scheme, estimates, traffic, layers, stretches)

    def _accepted(self, log: LoopLog) -> float | None:
        """Return the share of drafts that are the trajectory's next token."""
        if not log.drafts:
            return None
        return float(np.mean(np.array(log.drafts) == np.array(self._tokens[1:])))

    def _compare_texts(self, plans: Sequence[LoopPlan], name: str) -> list[FreeRun | None]:
        """Let each scheme write its own text, and read that with full attention."""
        if not self._options.free_run:
            return [None] * len(plans)
        texts = self._write(ClosedLoops(self._model, self._start, plans), len(plans), name)
        return [
            compare_texts(self._full_text, text, self._read(text) - self._full_text_nll)
            for text in texts
        ]

    def _write(self, loop: FullLoop | ClosedLoops, count: int, name: str) -> list[list[int]]:
        """Continue the trajectory's first token greedily, ``count`` texts side by side.

        The model may not end its text, so that texts have one length.
        """
        texts: list[list[int]] = [[] for _ in range(count)]
        tokens = [self._tokens[0]] * count
        for step in range(len(self._full)):
            self._progress(f"{name}, own text", step, len(self._full))
            logits = loop.step(tokens)
            logits[:, list(self._model.end_tokens)] = -torch.inf
            tokens = [int(token) for token in logits.argmax(dim=-1)]
            for text, token in zip(texts, tokens, strict=True):
                text.append(token)
        self._progress(f"{name}, own text", len(self._full), len(self._full))
        return texts

    def _read(self, text: list[int]) -> float:
        """Return the mean NLL of a text after the trajectory's first token, by full attention."""
        logits = FullLoop(self._model, self._start).step([self._tokens[0], *text[:-1]])
        shares = torch.log_softmax(logits.double(), dim=-1)
        return -float(shares[torch.arange(len(text)), torch.tensor(text)].mean())


def _log_shares(logits: Tensor) -> Values:
    return np.asarray(torch.log_softmax(logits.double(), dim=-1))


def _step_quality(outputs: list[tuple[float, float, float]], log: LoopLog) -> StepQuality:
    kl, agreement, nll = np.array(outputs, dtype=np.float64).T
    return StepQuality(
        kl=kl,
        top1_agreement=agreement,
        nll_difference=nll,
        attention_mass=np.stack(log.mass),
        overlap=np.stack(log.overlap),
        needed=np.stack(log.needed),
        admitted=np.stack(log.admitted),
    )


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
        "interval": {
            "method": METHOD,
            "confidence": CONFIDENCE,
            "block_steps": boot.block_steps,
            "resamples": options.resamples,
            "seed": options.bootstrap_seed,
        },
    }
