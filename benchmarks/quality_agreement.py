"""Two independent runs of `quality`, reference on a CPU and kernels on a GPU, decision by decision.

    python benchmarks/quality_agreement.py cpu MODEL.gguf prose --out FOLDER [--steps 128]
    python benchmarks/quality_agreement.py gpu MODEL.gguf prose --from FOLDER --out FOLDER
        [--device cuda]

`cpu` decodes with the reference and keeps what it decided (``agreement-TEXT.npz``). `gpu` decodes
twice: *alone*, from the text on, with nothing of the CPU's run; and *steered*, on the CPU's tokens
and drafts with the CPU's choices in place of its own, so that both attend the same blocks. It
writes ``quality-gpu-agreement-TEXT.json``: admissions of every step, layer and head, alike or not,
each difference with the gap of the scores beside what rounding can do to them, and KL by case.
With ``--device cpu`` the kernels' work is done by ``gpu_exec.model.host_kernels``.

Queries, keys and values are rounded to bfloat16 on both sides, the rest is float32.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from agreement import Choices, Watch, WeighedKernels, decisions, divergence
from numpy.typing import NDArray
from quality_gpu import about, decode, drafter_of
from quality_smollm2 import ROOT, TEXTS

from gpu_exec.model.backend import PagedBackend
from gpu_exec.model.host_kernels import HostKernels
from gpu_exec.model.kernels import CudaKernels
from oasis_sim.quality import vary_scheme
from oasis_sim.quality.backend import LoopPlan, Reference
from oasis_sim.quality.bootstrap import BlockBootstrap
from oasis_sim.quality.decode import plan_of
from oasis_sim.quality.pools import PoolStep
from oasis_sim.quality.rows import Memory
from oasis_sim.quality.start import Start
from oasis_sim.record import (
    ProgressLines,
    Prompt,
    PromptRequest,
    RecordedModel,
    RecordOptions,
    build_prompt,
    load_recorded_model,
    load_text,
)
from oasis_sim.record.trajectory import Trajectory, follow
from oasis_sim.residency.stats import RECENT_BLOCKS, SINK_BLOCKS
from oasis_sim.scheme import Scheme, load_scheme, with_options
from oasis_sim.trace.trace import Order

BUDGETS = (512, 1024)
RATIOS = {"draft": (0.0, 0.05, 0.1, 0.2, 1.0), "previous": (1.0,)}


def main() -> None:
    """Decode on one side; with the GPU also compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("side", choices=["cpu", "gpu"])
    parser.add_argument("model", type=Path)
    parser.add_argument("text", choices=TEXTS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--prompt-tokens", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--from", dest="source", type=Path, help="folder of the CPU's run")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", help="where the tree is no repository")
    arguments = parser.parse_args()
    with torch.inference_mode():
        if arguments.side == "cpu":
            on_cpu(arguments).save(arguments.out / f"agreement-{arguments.text}.npz")
            return
        found = on_gpu(arguments)
    place = arguments.out / f"quality-gpu-agreement-{arguments.text}.json"
    place.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for case in found["cases"]:
        print(json.dumps(case))


def schemes() -> list[Scheme]:
    """Return the cases, with the working set of ``oasis-sim trace stats``."""
    base = with_options(
        load_scheme("oasis"),
        sink_blocks=SINK_BLOCKS,
        recent_blocks=RECENT_BLOCKS,
        recent_in_budget=True,
    )
    return [
        scheme
        for predictor, ratios in RATIOS.items()
        for scheme in vary_scheme(base, BUDGETS, ratios, [predictor])
    ]


def prompt_of(model: RecordedModel, arguments: argparse.Namespace) -> Prompt:
    """Return the text's prompt."""
    text = TEXTS[arguments.text]
    source = load_text(ROOT / "traces" / "texts" / text.file, "CC0-1.0")
    tokens = None if text.prompt_tokens is None else arguments.prompt_tokens
    return build_prompt(
        model.tokenizer, source, PromptRequest(tokens=tokens, question=text.question), 0
    )


def options_of(arguments: argparse.Namespace, trajectory: str = "sample") -> RecordOptions:
    """Return how the trajectory is made."""
    text = TEXTS[arguments.text]
    return RecordOptions(
        steps=arguments.steps,
        trajectory=trajectory,
        temperature=text.temperature,
        seed=text.seed,
        ignore_eos=True,
        drafters=("skip",),
        draft_budget_tokens=BUDGETS[0],
    )


class Kept(Reference):
    """Attend in float32, and keep what the pools decide."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.targets: dict[int, list[NDArray[np.int16]]] = {}
        self.attended: dict[int, list[NDArray[np.bool_]]] = {}

    def sparse(self, start: Start, plans: Any) -> Memory:
        """Return the memory of one row per plan."""
        memory = super().sparse(start, plans)
        for layer, pools in memory.pools.items():
            pools.advance = partial(  # type: ignore[method-assign]
                self._advance, layer, plans, pools.advance
            )
        return memory

    def _advance(
        self,
        layer: int,
        plans: list[LoopPlan],
        move: Any,
        position: int,
        use: Order,
        target: Order,
        *caps: Any,
    ) -> PoolStep:
        first = layer not in self.targets
        kept = ranked(use if first else target, plans, position)
        self.targets.setdefault(layer, []).append(kept)
        moved: PoolStep = move(position, use, target, *caps)
        self.attended.setdefault(layer, []).append(moved.attended)
        return moved


def ranked(order: Order, plans: list[LoopPlan], position: int) -> NDArray[np.int16]:
    """Return the chosen blocks of orders [R, H, N], best first, -1 = none, [R, H, K]."""
    most = max(plan.rule.chosen_blocks for plan in plans)
    found = np.full((*order.shape[:2], most), -1, dtype=np.int16)
    for row, plan in enumerate(plans):
        rule = plan.rule
        for head, listed in enumerate(order[row]):
            allowed = (listed >= rule.sink_blocks) & (listed <= rule.last_candidate(position))
            best = listed[allowed][: rule.chosen_blocks]
            found[row, head, : len(best)] = best
    return found


def on_cpu(arguments: argparse.Namespace) -> Choices:
    """Decode with the reference."""
    model = load_recorded_model(arguments.model, threads=arguments.threads)
    path = follow(
        model, prompt_of(model, arguments), options_of(arguments), ProgressLines(sys.stderr)
    )
    drafts = tuple(drafter_of(model).draft(model, path, ProgressLines(sys.stderr)))
    kept = Kept()
    part = decode(model, path, schemes(), drafts, kept)
    widest = max(step.shape[-1] for step in kept.attended[0])
    return Choices(
        tokens=np.array(path.tokens[path.prompt_tokens :]),
        drafts=np.array(drafts),
        targets=np.stack([np.stack(kept.targets[layer]) for layer in kept.targets], axis=1),
        attended=np.stack(
            [
                np.stack([widened(step, widest) for step in kept.attended[layer]])
                for layer in kept.attended
            ],
            axis=1,
        ),
        admitted=part["admitted"].numpy(),
        outputs=part["outputs"].numpy(),
    )


def widened(attended: NDArray[np.bool_], blocks: int) -> NDArray[np.bool_]:
    """Return attended blocks [R, H, B] with more places, all unattended."""
    return np.pad(attended, ((0, 0), (0, 0), (0, blocks - attended.shape[-1])))


def on_gpu(arguments: argparse.Namespace) -> dict[str, Any]:
    """Decode alone and steered, and compare both with the CPU's run."""
    expected = Choices.load(arguments.source / f"agreement-{arguments.text}.npz")
    arguments.steps = len(expected.tokens) - 1
    model = load_recorded_model(arguments.model, device=arguments.device)
    prompt, show = prompt_of(model, arguments), ProgressLines(sys.stderr)
    started = time.monotonic()
    path = follow(model, prompt, options_of(arguments), show)
    tokens = path.tokens[path.prompt_tokens :]
    drafts = tuple(drafter_of(model).draft(model, path, show))
    alone, alone_out = run(arguments, model, path, drafts, expected, steer=False)
    again = Prompt(prompt.tokens, tuple(expected.tokens.tolist()), prompt.header)
    path = follow(model, again, options_of(arguments, "text"), show)
    given = tuple(expected.drafts.tolist())
    steered, steered_out = run(arguments, model, path, given, expected, steer=True)
    boot = BlockBootstrap(arguments.steps - 1, resamples=2000, seed=0)
    cases = [
        {
            "budget_tokens": scheme.budget_tokens,
            "predictor": scheme.predictor,
            "cap_blocks": scheme.admission_cap,
            "alone": {
                **decisions(alone, row),
                **divergence(alone_out[row, 0, 1:], expected.outputs[row, 0, 1:], boot),
            },
            "steered": {
                **decisions(steered, row),
                **divergence(steered_out[row, 0, 1:], expected.outputs[row, 0, 1:], boot),
            },
        }
        for row, scheme in enumerate(schemes())
    ]
    return {
        **about(arguments.device, arguments.commit),
        "text": arguments.text,
        "prompt_tokens": path.prompt_tokens,
        "steps": arguments.steps,
        "model": model.header(),
        "seconds": round(time.monotonic() - started, 1),
        "same_tokens": int((np.array(tokens) == expected.tokens).sum()),
        "same_drafts": int((np.array(drafts) == expected.drafts).sum()),
        "cases": cases,
    }


def run(
    arguments: argparse.Namespace,
    model: RecordedModel,
    path: Trajectory,
    drafts: tuple[int, ...],
    expected: Choices,
    *,
    steer: bool,
) -> tuple[Watch, NDArray[np.float64]]:
    """Decode through the kernels, watched; return what was seen and the outputs."""
    plans = [plan_of(scheme) for scheme in schemes()]
    full = [layer for layer, span in enumerate(path.spans) if span is None]
    watch = Watch(plans, expected, path.prompt_tokens, full, steer)
    inner = HostKernels if arguments.device == "cpu" else CudaKernels

    def make(shape: Any, device: Any) -> WeighedKernels:
        places = torch.from_numpy(shape.bound_places).to(device)
        watch.kernels = WeighedKernels(inner(shape, device), places, shape)
        return watch.kernels

    backend = PagedBackend("paged", model.query_heads, make, watch.attends, watch.scores)
    part = decode(model, path, schemes(), drafts, backend)
    return watch, part["outputs"].numpy()


if __name__ == "__main__":
    main()
