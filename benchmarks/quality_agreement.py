"""Two independent runs of `quality`, reference on a CPU and kernels on a GPU, decision by decision.

    python benchmarks/quality_agreement.py cpu MODEL.gguf prose --out FOLDER [--steps 128]
    python benchmarks/quality_agreement.py gpu MODEL.gguf prose --from FOLDER --out FOLDER
        [--device cuda]
    python benchmarks/quality_agreement.py again MODEL.gguf prose --from FOLDER --out FOLDER

`cpu` decodes with the reference and keeps what it decided (``agreement-TEXT.npz``). `gpu` decodes
twice: *alone*, from the text on, with nothing of the CPU's run; and *steered*, on the CPU's tokens
and drafts with the CPU's choices in place of its own, so that both attend the same blocks. It
writes ``quality-gpu-agreement-TEXT.json``: admissions of every step, layer and head, alike or not,
each difference with the gap of the scores beside what rounding can do to them, and KL by case.
With ``--device cpu`` the kernels' work is done by ``gpu_exec.model.host_kernels``. `again` decodes
with the reference on the CPU once more, the prompt in other chunks, which changes the order of
sums and nothing else: how far two runs of the same program are apart
(``quality-cpu-agreement-TEXT.json``).

Queries, keys and values are rounded to bfloat16 on both sides, the rest is float32.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from agreement import Choices, Watch, WeighedKernels, decisions, divergence
from agreement_cpu import Kept, widened
from numpy.typing import NDArray
from quality_gpu import about, decode, drafter_of
from quality_smollm2 import ROOT, TEXTS, working_set_scheme

from gpu_exec.model.backend import PagedBackend
from gpu_exec.model.host_kernels import HostKernels
from gpu_exec.model.kernels import CudaKernels
from oasis_sim.quality import vary_scheme
from oasis_sim.quality.bootstrap import BlockBootstrap
from oasis_sim.quality.decode import plan_of
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
from oasis_sim.scheme import Scheme

BUDGETS = (512, 1024)
RATIOS = {"draft": (0.0, 0.05, 0.1, 0.2, 1.0), "previous": (1.0,)}


def main() -> None:
    """Decode on one side; with the GPU also compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("side", choices=["cpu", "gpu", "again"])
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
        found = on_gpu(arguments) if arguments.side == "gpu" else on_cpu_again(arguments)
    who = "gpu" if arguments.side == "gpu" else "cpu"
    place = arguments.out / f"quality-{who}-agreement-{arguments.text}.json"
    place.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for case in found["cases"]:
        print(json.dumps(case))


def schemes() -> list[Scheme]:
    """Return the cases, with the working set of ``oasis-sim trace stats``."""
    base = working_set_scheme()
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


OTHER_CHUNKS = 192


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
        chunk_tokens=OTHER_CHUNKS if arguments.side == "again" else 256,
    )


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


def on_cpu_again(arguments: argparse.Namespace) -> dict[str, Any]:
    """Decode with the reference and compare with its other run."""
    expected = Choices.load(arguments.source / f"agreement-{arguments.text}.npz")
    arguments.steps = len(expected.tokens) - 1
    found = on_cpu(arguments)
    boot = BlockBootstrap(arguments.steps - 1, resamples=2000, seed=0)
    sets = [np.sort(run.targets, axis=-1) for run in (found, expected)]
    same_best = (sets[0] == sets[1]).all(axis=-1)
    same_attended = (found.attended == expected.attended).all(axis=-1)
    cases = [
        {
            "budget_tokens": scheme.budget_tokens,
            "predictor": scheme.predictor,
            "cap_blocks": scheme.admission_cap,
            "decisions": int(same_best[:, :, row].size),
            "same_best_blocks": int(same_best[:, :, row].sum()),
            "same_attended": int(same_attended[:, :, row].sum()),
            **divergence(found.outputs[row, 0, 1:], expected.outputs[row, 0, 1:], boot, "kl_again"),
        }
        for row, scheme in enumerate(schemes())
    ]
    return {
        **about("cpu", arguments.commit),
        "device": "cpu",
        "text": arguments.text,
        "steps": arguments.steps,
        "chunk_tokens": [256, OTHER_CHUNKS],
        "same_tokens": int((found.tokens == expected.tokens).sum()),
        "same_drafts": int((found.drafts == expected.drafts).sum()),
        "cases": cases,
    }


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
