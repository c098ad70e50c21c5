"""The true rows: prefill a prompt in chunks, then decode token by token with full attention."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from oasis_sim.errors import InputError
from oasis_sim.record.attention import CausalPass, KeyValueStore, run_pass
from oasis_sim.record.backend import RecordedModel
from oasis_sim.record.options import RecordOptions
from oasis_sim.record.progress import ProgressCallback
from oasis_sim.record.prompt import Prompt

_LOGIT_ROWS = 64


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Hold what the true rows left behind: T steps after ``prompt_tokens`` tokens."""

    store: KeyValueStore
    prompt_tokens: int
    tokens: tuple[int, ...]  # the prompt and the T + 1 tokens after it
    queries: tuple[Tensor, ...]  # by layer, [Hq, T, d]
    spans: tuple[int | None, ...]
    scalings: tuple[float, ...]
    perplexity: float

    @property
    def steps(self) -> int:
        """Return T."""
        return len(self.tokens) - self.prompt_tokens - 1

    @property
    def positions(self) -> Tensor:
        """Return the position of each step, int64 [T]."""
        end = self.prompt_tokens + self.steps
        return torch.arange(self.prompt_tokens, end, device=self.queries[0].device)


def follow(
    model: RecordedModel, prompt: Prompt, options: RecordOptions, progress: ProgressCallback
) -> Trajectory:
    """Run the prompt and up to ``options.steps`` tokens after it through the model.

    A trajectory of the model's own ends early when it ends its text. Raises InputError when the
    model does not understand the prompt, hides its attention or ends before two steps.
    """
    count = len(prompt.tokens)
    store = KeyValueStore(model.layers, count + options.steps)
    state, perplexity = _prefill(model, prompt, store, options, progress)
    chooser = _TokenChooser(model, prompt, options)
    tokens = [*prompt.tokens, chooser.choose(state, 0)]
    queries: list[list[Tensor]] = [[] for _ in range(model.layers)]
    attention = CausalPass(store, keep_queries=True)
    for step in range(options.steps):
        progress("decode", step, options.steps)
        if chooser.ends(tokens[-1]):
            break
        here = torch.tensor([count + step])
        state = run_pass(model.module, torch.tensor([tokens[-1]]), here, attention)[-1]
        for layer, kept in enumerate(queries):
            kept.append(attention.queries[layer])
        tokens.append(chooser.choose(state, step + 1))
    progress("decode", options.steps, options.steps)
    steps = len(tokens) - count - 1
    if steps < 2:
        raise InputError(
            f"the model ended its text after {steps} steps",
            file=model.file,
            fix="use --ignore-eos, --trajectory text or another prompt",
        )
    return Trajectory(
        store=store,
        prompt_tokens=count,
        tokens=tuple(tokens),
        queries=tuple(torch.cat(kept, dim=1) for kept in queries),
        spans=tuple(attention.spans[layer] for layer in range(model.layers)),
        scalings=tuple(attention.scalings[layer] for layer in range(model.layers)),
        perplexity=perplexity,
    )


def _prefill(
    model: RecordedModel,
    prompt: Prompt,
    store: KeyValueStore,
    options: RecordOptions,
    progress: ProgressCallback,
) -> tuple[Tensor, float]:
    """Fill the store chunk by chunk; return the last state and the prompt's perplexity."""
    ids = torch.tensor(prompt.tokens, dtype=torch.int64)
    count, log_loss = len(ids), 0.0
    state = torch.empty(0)
    for start in range(0, count, options.chunk_tokens):
        progress("prefill", start, count)
        end = min(start + options.chunk_tokens, count)
        attention = CausalPass(store, keep_queries=False)
        states = run_pass(model.module, ids[start:end], torch.arange(start, end), attention)
        if sorted(attention.spans) != list(range(model.layers)):
            raise InputError("this model hides layers from the recorder", file=model.file)
        targets = ids[start + 1 : end + 1]
        log_loss += _log_loss(model, states[: len(targets)], targets)
        state = states[-1]
    progress("prefill", count, count)
    return state, check_perplexity(log_loss / (count - 1), options.max_perplexity, model.file)


def check_perplexity(mean_log_loss: float, limit: float, file: str) -> float:
    """Return the perplexity; raise InputError when it is above the limit or not a number."""
    perplexity = math.exp(mean_log_loss) if mean_log_loss < 700.0 else math.inf
    if not perplexity <= limit:
        raise InputError(
            f"reads the prompt with perplexity {perplexity:.4g}, above {limit:g}: its weights or "
            "tokenizer are broken, or it does not know this kind of text",
            file=file,
            fix="check the model; for unusual text raise --max-perplexity",
        )
    return perplexity


def _log_loss(model: RecordedModel, states: Tensor, targets: Tensor) -> float:
    """Return the summed negative log-likelihood; a few rows of logits at a time."""
    head = model.module.get_output_embeddings()
    total = 0.0
    for start in range(0, len(targets), _LOGIT_ROWS):
        part = slice(start, start + _LOGIT_ROWS)
        logits = head(states[part]).float()
        loss = cross_entropy(logits, targets[part].to(logits.device), reduction="sum")
        total += float(loss)
    return total


class _TokenChooser:
    """Choose the next token of a trajectory: the text's own, the model's likeliest or a draw."""

    def __init__(self, model: RecordedModel, prompt: Prompt, options: RecordOptions) -> None:
        self._head = model.module.get_output_embeddings()
        self._ends = list(model.end_tokens)
        self._following = prompt.following if options.trajectory == "text" else None
        self._ignore_eos = options.ignore_eos
        self._temperature = options.temperature if options.trajectory == "sample" else None
        self._random = torch.Generator().manual_seed(options.seed)

    def choose(self, state: Tensor, index: int) -> int:
        """Return the token after a final state, the ``index``-th after the prompt."""
        if self._following is not None:
            return self._following[index]
        # Draws are made on the CPU, whose generator is the same everywhere.
        logits = self._head(state[None])[0].float().cpu()
        if self._ignore_eos:
            logits[self._ends] = -torch.inf
        if self._temperature is None:
            return int(logits.argmax())
        shares = torch.softmax(logits.double() / self._temperature, dim=-1)
        return int(torch.multinomial(shares, 1, generator=self._random))

    def ends(self, token: int) -> bool:
        """Tell whether a token ends the trajectory."""
        return self._following is None and token in self._ends
