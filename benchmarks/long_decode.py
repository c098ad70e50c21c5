"""The decoding of ``quality_long.py``: prompts that are read once, cases, and one run of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from quality_gpu import drafter_of
from quality_smollm2 import ROOT, TEXTS, working_set_scheme
from torch import Tensor

from oasis_sim.quality import vary_scheme
from oasis_sim.quality.backend import Backend
from oasis_sim.quality.decode import plan_of
from oasis_sim.quality.guess import GivenGuess
from oasis_sim.quality.loop import ClosedLoops, FullLoops
from oasis_sim.quality.start import Start
from oasis_sim.record import (
    Prompt,
    PromptRequest,
    RecordedModel,
    RecordOptions,
    build_prompt,
    load_text,
)
from oasis_sim.record.checkpoint import Part, Parts
from oasis_sim.record.progress import no_progress
from oasis_sim.record.trajectory import Trajectory, follow
from oasis_sim.scheme import Scheme

RATIOS = {
    512: (0.0, 0.05, 0.1, 0.2, 1.0),  # 0.01 and 0.02 are less than one block: they are ratio 0
    1024: (0.0, 0.02, 0.05, 0.1, 0.2, 1.0),  # 0.01 is ratio 0
}
Values = NDArray[np.float64]


class Remembered(Parts):
    """Keep the parts of the prefill in memory, so that a prompt is read once."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._known: dict[str, Part] = {}

    def get(self, name: str, compute: Callable[[], Part]) -> Part:
        """Return a part, computed once when it is of the prefill."""
        if not name.startswith("prefill"):
            return compute()
        if name not in self._known:
            part = compute()
            self._known[name] = {key: value.clone() for key, value in part.items()}
        return self._known[name]


class LongPrompt:
    """Read a prompt once and continue it from different seeds."""

    def __init__(self, model: RecordedModel, text: str, prompt_tokens: int, steps: int) -> None:
        """Take a text of ``quality_smollm2.py``."""
        self.model, self.text = model, text
        self._text = TEXTS[text]
        self._steps = steps
        source = load_text(ROOT / "traces" / "texts" / self._text.file, "CC0-1.0")
        tokens = None if self._text.prompt_tokens is None else prompt_tokens
        request = PromptRequest(tokens=tokens, question=self._text.question)
        self._prompt = build_prompt(model.tokenizer, source, request, 0)
        self._parts = Remembered()

    def path(
        self, seed: int, *, steps: int | None = None, tokens: tuple[int, ...] | None = None
    ) -> Trajectory:
        """Draw tokens after the prompt, or follow the given ones (T + 1)."""
        prompt, trajectory = self._prompt, "sample"
        steps = steps or self._steps
        if tokens is not None:
            steps, trajectory = len(tokens) - 1, "text"
            prompt = Prompt(prompt.tokens, tokens, prompt.header)
        options = RecordOptions(
            steps=steps,
            trajectory=trajectory,
            temperature=self._text.temperature,
            seed=seed,
            ignore_eos=True,
            drafters=("skip",),
            draft_budget_tokens=512,
        )
        return follow(self.model, prompt, options, no_progress, self._parts)

    def drafts(self, path: Trajectory) -> tuple[int, ...]:
        """Return the draft of each step."""
        return tuple(drafter_of(self.model).draft(self.model, path, no_progress))


def cases() -> list[Scheme]:
    """Return the cases, with the working set of ``oasis-sim trace stats``; each cap once.

    Without fetching the predictor does not matter.
    """
    base = working_set_scheme()
    return [
        scheme
        for budget, ratios in RATIOS.items()
        for predictor in ("draft", "previous")
        for scheme in vary_scheme(base, [budget], ratios, [predictor])
        if scheme.admission_cap or predictor == "draft"
    ]


def steering(
    choices: NDArray[np.int16], first: int, layers: Sequence[int], device: Any
) -> Callable[..., Tensor]:
    """Return what puts given choices, int16 [T, L, R, H, K], best first, in place of a run's own.

    ``first`` is the position of step 0, ``layers`` the full-attention layers.
    """
    given = torch.from_numpy(choices.astype(np.int64)).to(device)
    rank = torch.arange(given.shape[-1], 0, -1, device=device, dtype=torch.float32)
    places = {layer: place for place, layer in enumerate(layers)}

    def steer(memory: Any, layer: int, position: int, own: Tensor) -> Tensor:
        del memory
        theirs = given[position - first, places[layer]]
        forced = torch.zeros(*own.shape[:2], own.shape[2] + 1, device=own.device)
        listed = torch.where(theirs < 0, own.shape[2], theirs)
        forced.scatter_(2, listed, rank.expand_as(listed))
        return forced[..., :-1].contiguous()

    return steer


def decode_until(
    model: RecordedModel,
    path: Trajectory,
    drafts: Sequence[int],
    backend: Backend,
    end: float,
) -> dict[str, Any]:
    """Decode the cases over a trajectory until its end or a time (seconds since 1970).

    By case and step, float64 [R, S]: ``kl``, ``top1_agreement`` and ``nll_difference`` as
    ``output_quality``; ``mass``, and ``needed``, ``admitted``, ``overlap`` in blocks, means over
    layers and heads.
    """
    plans = [plan_of(scheme) for scheme in cases()]
    start = Start.after_prompt(path, plans[0].rule.block_tokens, kv_16bit=True)
    tokens = path.tokens[path.prompt_tokens :]
    whole = FullLoops(model, start, backend=backend)
    reference = [whole.step([token])[0] for token in tokens[:-1]]
    loops = ClosedLoops(
        model, start, plans, GivenGuess(drafts, path.prompt_tokens), backend=backend
    )
    outputs: list[Tensor] = []
    for step, token in enumerate(tokens[:-1]):
        if time.time() > end:
            break
        logits = loops.step([token] * len(plans))
        outputs.append(quality_of(reference[step], logits, tokens[step + 1]))
    kl, agree, nll = torch.stack(outputs, dim=-1).cpu().numpy()
    found = {"kl": kl, "top1_agreement": agree, "nll_difference": nll}
    for name in ("mass", "needed", "admitted", "overlap"):
        found[name] = np.stack([[step.mean() for step in getattr(log, name)] for log in loops.logs])
    return found


def quality_of(full: Tensor, sparse: Tensor, token: int) -> Tensor:
    """Return ``output_quality`` of logits [V] and [R, V], on their device: float64 [3, R]."""
    whole = torch.log_softmax(full.double(), dim=-1)
    shares = torch.log_softmax(sparse.double(), dim=-1)
    kl = (whole.exp() * (whole - shares)).sum(dim=-1).clamp(min=0.0)
    agree = shares.argmax(dim=-1) == whole.argmax()
    return torch.stack([kl, agree.double(), whole[token] - shares[:, token]])
