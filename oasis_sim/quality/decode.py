"""The decoding of a study: full attention first, then schemes side by side; arrays come out.

What is computed comes in parts that can be kept (``oasis_sim.record.checkpoint``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from oasis_sim.engine.walks import residency_rule
from oasis_sim.quality.backend import Backend, LoopPlan
from oasis_sim.quality.guess import GivenGuess, Guess, guess_along
from oasis_sim.quality.key_index import EXTREMES_FP8
from oasis_sim.quality.loop import ClosedLoops, FullLoops, LoopLog
from oasis_sim.quality.measure import Values, output_quality
from oasis_sim.quality.options import QualityOptions, index_of
from oasis_sim.quality.start import Start
from oasis_sim.record.backend import RecordedModel
from oasis_sim.record.checkpoint import Part
from oasis_sim.record.drafters import Drafter
from oasis_sim.record.progress import ProgressCallback
from oasis_sim.record.trajectory import Trajectory
from oasis_sim.residency.predict import DRAFT
from oasis_sim.residency.simulate import simulate
from oasis_sim.scheme import Scheme
from oasis_sim.trace.trace import NO_BLOCK

COUNTED = ("needed", "admitted", "overlap", "mass")
ALIKE = "alike"


@dataclass(frozen=True, eq=False)
class Decoding:
    """Decode one trajectory in several ways from the same prompt.

    ``drafts`` are the drafter's, one per step; ``along`` is the drafter of texts of the rows' own,
    None when no such texts are wanted.
    """

    model: RecordedModel
    start: Start
    tokens: tuple[int, ...]  # T + 1 of the trajectory
    drafts: tuple[int, ...]
    along: Guess | None
    backend: Backend
    progress: ProgressCallback

    @classmethod
    def of(
        cls,
        model: RecordedModel,
        path: Trajectory,
        start: Start,
        drafter: Drafter | None,
        *,
        free_run: bool,
        backend: Backend,
        progress: ProgressCallback,
    ) -> Decoding:
        """Draft the trajectory; without a drafter no scheme may predict by drafts.

        Raises UsageError when texts of the rows' own are wanted of a drafter that cannot follow.
        """
        along: Guess | None = GivenGuess((), 0) if free_run else None
        if drafter is not None and free_run:
            along = guess_along(model, drafter)
        drafts = () if drafter is None else tuple(drafter.draft(model, path, progress))
        return cls(
            model, start, path.tokens[path.prompt_tokens :], drafts, along, backend, progress
        )

    @property
    def steps(self) -> int:
        """Return T."""
        return len(self.tokens) - 1

    def full(self) -> Part:
        """Decode with full attention.

        ``logits`` float32 [T, V] over the trajectory; with own texts also ``text`` int64 [1, T]
        and ``text_nll`` float64 [1].
        """
        loop = FullLoops(self.model, self.start, backend=self.backend)
        logits = []
        for step, token in enumerate(self.tokens[:-1]):
            self.progress("full attention", step, self.steps)
            logits.append(loop.step([token])[0])
        self.progress("full attention", self.steps, self.steps)
        found = {"logits": torch.stack(logits)}
        if self.along is not None:
            writer = FullLoops(self.model, self.start, backend=self.backend)
            found |= self._own_texts(writer, 1, "full attention")
        return found

    def sparse(self, plans: Sequence[LoopPlan], full_logits: Tensor, name: str) -> Part:
        """Decode by some plans side by side.

        ``outputs`` float64 [R, 3, T] as ``output_quality``; counts and mass [R, T, L, H] by the
        names of ``COUNTED``, and ``ALIKE`` where an index is compared with exact keys; with own
        texts also ``text`` [R, T] and ``text_nll`` [R].
        """
        given = GivenGuess(self.drafts, len(self.start.prompt))
        foreseen = any(plan.rule.belady for plan in plans)
        loops = ClosedLoops(
            self.model, self.start, plans, given, backend=self.backend, keep_orders=foreseen
        )
        outputs: list[Values] = []
        for step, token in enumerate(self.tokens[:-1]):
            self.progress(name, step, self.steps)
            sparse = log_shares(loops.step([token] * len(plans)))
            full = log_shares(full_logits[step])
            outputs.append(output_quality(full, sparse, self.tokens[step + 1]))
        self.progress(name, self.steps, self.steps)
        found = {"outputs": torch.from_numpy(np.stack(outputs, axis=-1))}
        if foreseen:
            for plan, log in zip(plans, loops.logs, strict=True):
                count_with_foresight(plan, log, len(self.start.prompt))
        for key in (*COUNTED, *([ALIKE] if loops.logs[0].alike else [])):
            rows = [np.stack(getattr(log, key)) for log in loops.logs]
            found[key] = torch.from_numpy(np.stack(rows))
        if self.along is not None:
            writer = ClosedLoops(self.model, self.start, plans, self.along, backend=self.backend)
            found |= self._own_texts(writer, len(plans), name)
        return found

    def accepted(self, scheme: Scheme) -> float | None:
        """Return the share of drafts that are the trajectory's next token."""
        if scheme.predictor != DRAFT:
            return None
        return float(np.mean(np.array(self.drafts) == np.array(self.tokens[1:])))

    def _own_texts(self, loops: FullLoops | ClosedLoops, rows: int, name: str) -> Part:
        """Continue the trajectory's first token greedily, then read that with full attention.

        The model may not end its text, so that texts have one length.
        """
        ends = list(self.model.end_tokens)
        texts = [[self.tokens[0]] * rows]
        for step in range(self.steps):
            self.progress(f"{name}, own text", step, self.steps)
            logits = loops.step(texts[-1])
            logits[:, ends] = -torch.inf
            texts.append(logits.argmax(dim=-1).tolist())
        self.progress(f"{name}, own text", self.steps, self.steps)
        reader = FullLoops(self.model, self.start, rows, backend=self.backend)
        total = np.zeros(rows)
        for step in range(self.steps):
            self.progress(f"{name}, reading the text", step, self.steps)
            shares = log_shares(reader.step(texts[step]))
            total -= shares[np.arange(rows), texts[step + 1]]
        self.progress(f"{name}, reading the text", self.steps, self.steps)
        return {
            "text": torch.tensor(texts[1:]).T,
            "text_nll": torch.from_numpy(total / self.steps),
        }


def count_with_foresight(plan: LoopPlan, log: LoopLog, first: int) -> None:
    """Put the needed and admitted blocks of Belady's eviction in place of the loop's.

    Without a cap a step attends its own choice whatever was evicted before: only traffic differs,
    and it is known when the last step is. ``first`` is the position of step 0.
    """
    rule = plan.rule
    stored = rule.chosen_blocks + rule.sink_blocks + rule.recent_blocks
    orders = np.full((len(log.use_order), *log.use_order[0].shape[:2], stored), NO_BLOCK, np.uint16)
    for step, order in enumerate(log.use_order):
        best = order[..., :stored]
        orders[step, ..., : best.shape[-1]] = best
    position = np.arange(first, first + len(orders), dtype=np.int32)
    found = simulate(orders, orders, position, rule)
    log.needed, log.admitted = list(found.needed), list(found.admitted)


def plan_of(scheme: Scheme, options: QualityOptions | None = None) -> LoopPlan:
    """Return how a scheme is decoded; schemes of equal plans are decoded once."""
    rule, index = residency_rule(scheme), index_of(scheme)
    if index.rank:
        rule = replace(rule, sink_blocks=0)
    caps: tuple[int, ...] = ()
    if options is not None:
        if options.index_fp8:
            index = replace(index, kind=EXTREMES_FP8)
        if scheme.adaptive_cap:
            caps = options.step_caps
    return LoopPlan(
        rule,
        scheme.predictor,
        host_8bit=scheme.host_bytes_per_element == 1,
        index=index,
        correction_share=scheme.correction_share,
        rehearse=scheme.lookahead == "one_layer",
        reuse=scheme.reuse,
        caps=caps,
    )


def log_shares(logits: Tensor) -> Values:
    """Return log-probabilities of logits, float64."""
    return np.asarray(torch.log_softmax(logits.double(), dim=-1).cpu())
