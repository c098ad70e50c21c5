"""The true rows: prefill a prompt in chunks, then decode token by token with full attention."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from oasis_sim.errors import InputError
from oasis_sim.record.attention import CausalPass, KeyValueStore, run_pass
from oasis_sim.record.backend import RecordedModel
from oasis_sim.record.checkpoint import Part, Parts
from oasis_sim.record.decoding import DecodeBackend, DecodePass
from oasis_sim.record.options import RecordOptions
from oasis_sim.record.prefill import prefill, restore_rows, stored_rows
from oasis_sim.record.probe import probe
from oasis_sim.record.progress import ProgressCallback
from oasis_sim.record.prompt import Prompt

_STRETCH_STEPS = 16
"""Steps between two checkpoints."""


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
    model: RecordedModel,
    prompt: Prompt,
    options: RecordOptions,
    progress: ProgressCallback,
    parts: Parts | None = None,
    backend: DecodeBackend | None = None,
) -> Trajectory:
    """Run the prompt and up to ``options.steps`` tokens after it through the model.

    A trajectory of the model's own ends early when it ends its text. ``parts`` keeps what is
    finished; ``backend`` attends the decoded rows, without one the library does. Raises InputError
    when the model does not understand the prompt, hides its attention or ends before two steps.
    """
    parts = parts or Parts()
    views = probe(model, prompt.tokens)
    count = len(prompt.tokens)
    store = KeyValueStore(model.layers, count + options.steps)
    state, perplexity = prefill(model, prompt, store, options, progress, parts)
    if backend is not None:
        backend.prefilled(store)
    chooser = _TokenChooser(model, prompt, options)
    decoder = _Decoder(model, store, chooser, prompt.tokens, backend)
    decoder.begin(state)
    for first in range(0, options.steps, _STRETCH_STEPS):
        if decoder.ended:
            break
        steps = range(first, min(first + _STRETCH_STEPS, options.steps))
        part = parts.get(
            f"decode-{first:08d}", partial(decoder.run, steps, options.steps, progress)
        )
        decoder.take(part)
    progress("decode", options.steps, options.steps)
    steps_done = len(decoder.tokens) - count - 1
    if steps_done < 2:
        raise InputError(
            f"the model ended its text after {steps_done} steps",
            file=model.file,
            fix="use --ignore-eos, --trajectory text or another prompt",
        )
    return Trajectory(
        store=store,
        prompt_tokens=count,
        tokens=tuple(decoder.tokens),
        queries=tuple(torch.cat(kept, dim=1) for kept in decoder.queries),
        spans=views.spans,
        scalings=views.scalings,
        perplexity=perplexity,
    )


class _Decoder:
    """Decode with full attention and keep the queries of every step."""

    def __init__(
        self,
        model: RecordedModel,
        store: KeyValueStore,
        chooser: _TokenChooser,
        prompt: tuple[int, ...],
        backend: DecodeBackend | None,
    ) -> None:
        self._model = model
        self._backend = backend
        self._store = store
        self._chooser = chooser
        self._prompt_tokens = len(prompt)
        self.tokens = list(prompt)
        self.queries: list[list[Tensor]] = [[] for _ in range(model.layers)]

    @property
    def ended(self) -> bool:
        """Tell whether the last token ends the trajectory."""
        return self._chooser.ends(self.tokens[-1])

    def begin(self, state: Tensor) -> None:
        """Choose the token after the prompt."""
        self.tokens.append(self._chooser.choose(state, 0))

    def run(self, steps: range, total: int, progress: ProgressCallback) -> Part:
        """Decode some steps; return their tokens, queries, keys and values, and the generator."""
        tokens = [self.tokens[-1]]
        queries: list[list[Tensor]] = [[] for _ in self.queries]
        attention: DecodePass = CausalPass(self._store, keep_queries=True)
        if self._backend is not None:
            attention = self._backend.decoder(self._store)
        for step in steps:
            progress("decode", step, total)
            if self._chooser.ends(tokens[-1]):
                break
            here = torch.tensor([self._prompt_tokens + step])
            state = run_pass(self._model.module, torch.tensor(tokens[-1:]), here, attention)[-1]
            for layer, kept in enumerate(queries):
                kept.append(attention.queries[layer])
            tokens.append(self._chooser.choose(state, step + 1))
        start = self._prompt_tokens + steps.start
        part = stored_rows(self._store, start, start + len(tokens) - 1)
        for layer, kept in enumerate(queries):
            part[f"query.{layer}"] = torch.cat(kept, dim=1)
        generator = self._chooser.generator
        return {**part, "tokens": torch.tensor(tokens[1:]), "generator": generator.get_state()}

    def take(self, part: Part) -> None:
        """Go on after a part, decoded just now or kept."""
        end = len(self.tokens) - 1 + len(part["tokens"])
        device = self._model.module.device
        restore_rows(self._store, part, end, device)
        for layer, kept in enumerate(self.queries):
            kept.append(part[f"query.{layer}"].to(device))
        self.tokens += part["tokens"].tolist()
        self._chooser.generator.set_state(part["generator"])


class _TokenChooser:
    """Choose the next token of a trajectory: the text's own, the model's likeliest or a draw."""

    def __init__(self, model: RecordedModel, prompt: Prompt, options: RecordOptions) -> None:
        self._head = model.module.get_output_embeddings()
        self._ends = list(model.end_tokens)
        self._following = prompt.following if options.trajectory == "text" else None
        self._ignore_eos = options.ignore_eos
        self._temperature = options.temperature if options.trajectory == "sample" else None
        # Draws are made on the CPU, whose generator is the same everywhere.
        self.generator = torch.Generator().manual_seed(options.seed)

    def choose(self, state: Tensor, index: int) -> int:
        """Return the token after a final state, the ``index``-th after the prompt."""
        if self._following is not None:
            return self._following[index]
        logits = self._head(state[None])[0].float().cpu()
        if self._ignore_eos:
            logits[self._ends] = -torch.inf
        if self._temperature is None:
            return int(logits.argmax())
        shares = torch.softmax(logits.double() / self._temperature, dim=-1)
        return int(torch.multinomial(shares, 1, generator=self.generator))

    def ends(self, token: int) -> bool:
        """Tell whether a token ends the trajectory."""
        return self._following is None and token in self._ends
