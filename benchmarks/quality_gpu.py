"""The GPU kernels on a real model: quality by paged decode beside the reference on the CPU.

    python benchmarks/quality_gpu.py MODEL.gguf --out validation/quality-gpu-smollm2.json
        [--device cuda] [--prompt-tokens 4096] [--steps 128] [--threads 8] [--checks-only]

Both decode the same tokens with the same drafts; queries, keys and values are rounded to bfloat16
on both, all else is float32. Every call of a kernel in the first ``--checked-steps`` steps is
compared with plain arithmetic on its own inputs (``gpu_exec.model.checked``); with
``--checks-only`` that is all. With ``--device cpu`` the kernels' work is done by
``gpu_exec.model.host_kernels``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_exec.model.backend import PagedBackend
from gpu_exec.model.checked import CheckedKernels
from gpu_exec.model.host_kernels import HostKernels
from gpu_exec.model.kernels import CudaKernels
from oasis_sim.quality import vary_scheme
from oasis_sim.quality.backend import Backend, LoopPlan, Reference
from oasis_sim.quality.bootstrap import BlockBootstrap
from oasis_sim.quality.decode import COUNTED, Decoding, plan_of
from oasis_sim.quality.pools import PoolStep
from oasis_sim.quality.rows import Memory
from oasis_sim.quality.start import Start
from oasis_sim.record import (
    Prompt,
    PromptRequest,
    RecordedModel,
    RecordOptions,
    build_prompt,
    load_recorded_model,
    load_text,
)
from oasis_sim.record.checkpoint import Part
from oasis_sim.record.choose_drafters import choose_drafters
from oasis_sim.record.progress import no_progress
from oasis_sim.record.trajectory import Trajectory, follow
from oasis_sim.scheme import Scheme, load_scheme
from oasis_sim.trace.trace import Order

ROOT = Path(__file__).parents[1]
CASES = {"draft": (0.05, 0.2, 1.0), "previous": (1.0,)}
BUDGETS = (512, 1024)


def main() -> None:
    """Decode on both and write what they say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--prompt-tokens", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--checked-steps", type=int, default=32)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--checks-only", action="store_true")
    parser.add_argument("--commit", default=None, help="where the tree is no repository")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with torch.inference_mode():
        found = checks(arguments) if arguments.checks_only else compare(arguments)
    arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in found.items() if key != "cases"}, indent=1))
    for case in found.get("cases", ()):
        print(case)


def checks(arguments: argparse.Namespace) -> dict[str, Any]:
    """Check the kernels on the model's first steps."""
    model = load_recorded_model(arguments.model, device=arguments.device)
    prompt = prompt_of(model, arguments.prompt_tokens)
    path = follow(model, prompt, options(arguments.checked_steps + 2, "sample"), no_progress)
    drafts = tuple(drafter_of(model).draft(model, path, no_progress))
    make = HostKernels if arguments.device == "cpu" else CudaKernels
    schemes, steps = all_schemes(), arguments.checked_steps
    tally = check_kernels(model, path, schemes, drafts, make, steps)
    facts = {"prompt_tokens": arguments.prompt_tokens, "steps": steps, "rows": len(schemes)}
    return {**about(arguments), "model": model.header(), **facts, **tally}


def all_schemes() -> list[Scheme]:
    """Return the cases that are decoded side by side."""
    return [
        scheme
        for predictor, ratios in CASES.items()
        for scheme in vary_scheme(load_scheme("oasis"), BUDGETS, ratios, [predictor])
    ]


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the reference, then the paged decode, and compare."""
    clock, schemes = Clock(), all_schemes()
    cpu = load_recorded_model(arguments.model, threads=arguments.threads)
    prompt = prompt_of(cpu, arguments.prompt_tokens)
    path = follow(cpu, prompt, options(arguments.steps, "sample"), no_progress)
    clock.lap("load_and_prefill_cpu")
    drafts = tuple(drafter_of(cpu).draft(cpu, path, no_progress))
    expected = decode(cpu, path, schemes, drafts, Reference())
    clock.lap("reference_cpu")
    gpu = cpu
    if arguments.device != "cpu":
        gpu = load_recorded_model(arguments.model, device=arguments.device)
    again = Prompt(prompt.tokens, path.tokens[path.prompt_tokens :], prompt.header)
    gpu_path = follow(gpu, again, options(arguments.steps, "text"), no_progress)
    clock.lap("load_and_prefill_gpu")
    gpu_drafts = drafter_of(gpu).draft(gpu, gpu_path, no_progress)
    make = HostKernels if arguments.device == "cpu" else CudaKernels
    read = Replay()
    backend = PagedBackend("paged", gpu.query_heads, make, read.watch)
    found = decode(gpu, gpu_path, schemes, drafts, backend)
    if arguments.device != "cpu":
        torch.cuda.synchronize()
    clock.lap("paged_gpu")
    moved = backend.kernels[-1].moved_bytes
    replayed = decode(cpu, path, schemes, drafts, read)
    clock.lap("replay_cpu")
    tally = check_kernels(gpu, gpu_path, schemes, drafts, make, arguments.checked_steps)
    clock.lap("checked_gpu")
    return {
        **about(arguments),
        "model": cpu.header(),
        "seconds": clock.laps,
        "same_drafts": float(np.mean(np.array(gpu_drafts) == np.array(drafts))),
        "moved_bytes": moved,
        "admitted_bytes": admitted_bytes(found, schemes, gpu),
        "kl_ratio_mean": mean_ratio(found, expected),
        "kl_ratio_mean_same_admissions": mean_ratio(found, replayed),
        "kernel_checks": {"steps": arguments.checked_steps, **tally},
        "cases": rows(schemes, expected, found, replayed),
    }


class Replay(Reference):
    """Attend in float32 the blocks that the paged decode attended: the same admissions."""

    def __init__(self) -> None:
        self._read: dict[tuple[int, int], NDArray[np.bool_]] = {}

    def watch(self, layer: int, position: int, scores: Tensor, attended: Tensor) -> None:
        """Keep what is attended at a step."""
        del scores
        self._read[layer, position] = attended.cpu().numpy()

    def sparse(self, start: Start, plans: Sequence[LoopPlan]) -> Memory:
        """Return the memory of one row per plan, whose pools do as they are told."""
        memory = super().sparse(start, plans)
        for layer, pools in memory.pools.items():
            pools.advance = partial(self._advance, layer)  # type: ignore[method-assign]
        return memory

    def _advance(self, layer: int, position: int, use: Order, target: Order) -> PoolStep:
        del use, target
        read = self._read[layer, position]
        none = np.zeros(read.shape[:2], dtype=np.int32)
        return PoolStep(read, none, none, none)


class Clock:
    """Take the time between laps."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """Keep the seconds since the last lap."""
        now = time.monotonic()
        self.laps[name] = round(now - self._last, 2)
        self._last = now


def options(steps: int, trajectory: str) -> RecordOptions:
    """Return how the trajectory is made."""
    return RecordOptions(
        steps=steps,
        trajectory=trajectory,
        temperature=0.6,
        seed=1,
        ignore_eos=True,
        drafters=("skip",),
        draft_budget_tokens=512,
    )


def prompt_of(model: RecordedModel, tokens: int) -> Prompt:
    """Return the prose text."""
    text = load_text(ROOT / "traces" / "texts" / "prose.txt", "CC0-1.0")
    return build_prompt(model.tokenizer, text, PromptRequest(tokens=tokens, question=None), 0)


def drafter_of(model: RecordedModel) -> Any:
    """Return the drafter that skips the middle layers."""
    return choose_drafters(["skip"], model)[0]


def decode(
    model: RecordedModel,
    path: Trajectory,
    schemes: list[Scheme],
    drafts: tuple[int, ...],
    backend: Backend,
    steps: int | None = None,
) -> Part:
    """Decode the trajectory, or its first steps, with full attention and with the schemes."""
    start = Start.after_prompt(path, schemes[0].block_tokens, kv_16bit=True)
    tokens = path.tokens[path.prompt_tokens :][: None if steps is None else steps + 1]
    decoding = Decoding(model, start, tokens, drafts, None, backend, no_progress)
    logits = decoding.full()["logits"]
    return decoding.sparse([plan_of(scheme) for scheme in schemes], logits, "paged")


def check_kernels(
    model: RecordedModel,
    path: Trajectory,
    schemes: list[Scheme],
    drafts: tuple[int, ...],
    make: Any,
    steps: int,
) -> dict[str, Any]:
    """Decode the first steps once more, with every call checked; return the tallies."""
    plans: list[LoopPlan] = [plan_of(scheme) for scheme in schemes]
    chosen = torch.tensor([plan.rule.chosen_blocks for plan in plans])
    made: list[CheckedKernels] = []

    def checked(shape: Any, device: Any) -> CheckedKernels:
        counts = chosen[: shape.rows]
        made.append(CheckedKernels(make(shape, device), shape, device, counts))
        return made[-1]

    decode(model, path, schemes, drafts, PagedBackend("checked", model.query_heads, checked), steps)
    dense, sparse = (kernels.tally.to_json() for kernels in made)
    return {"full_attention": dense, "sparse": sparse}


def admitted_bytes(found: Part, schemes: list[Scheme], model: RecordedModel) -> int:
    """Return the bytes of all admitted units, the first choice included, padded to 128."""
    admitted = int(found["admitted"].sum())
    first = sum(scheme.chosen_blocks for scheme in schemes) * model.layers * model.kv_heads
    return (admitted + first) * schemes[0].block_tokens * 512


def mean_ratio(found: Part, expected: Part) -> float:
    """Return the mean KL of all cases on the GPU over that on the CPU."""
    both = [float(part["outputs"][:, 0, 1:].mean()) for part in (found, expected)]
    return both[0] / both[1]


def rows(
    schemes: list[Scheme], expected: Part, found: Part, replayed: Part
) -> list[dict[str, Any]]:
    """Return one row per case: KL on both, and how often the counts of a head agree."""
    result = []
    boot = BlockBootstrap(found["outputs"].shape[2] - 1, resamples=2000, seed=0)
    for row, scheme in enumerate(schemes):
        by_step = [part["outputs"][row, 0, 1:].numpy() for part in (expected, found, replayed)]
        kl = [float(values.mean()) for values in by_step]
        mass = [float(part["mass"][row, 1:].mean()) for part in (expected, found)]
        same = {
            f"same_{name}": float((expected[name][row, 1:] == found[name][row, 1:]).double().mean())
            for name in COUNTED[:3]
        }
        result.append(
            {
                "budget_tokens": scheme.budget_tokens,
                "predictor": scheme.predictor,
                "cap_blocks": scheme.admission_cap,
                "kl_cpu": kl[0],
                "kl_gpu": kl[1],
                "kl_same_admissions_cpu": kl[2],
                "kl_ratio": kl[1] / kl[0],
                "kl_ratio_same_admissions": kl[1] / kl[2],
                "kl_difference": boot.estimate(by_step[1] - by_step[0]).to_json(),
                "mass_cpu": mass[0],
                "mass_gpu": mass[1],
                **same,
            }
        )
    return result


def about(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return command, date, commit and who computed."""
    commit = arguments.commit
    if commit is None:
        command = ["git", "rev-parse", "HEAD"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        commit = done.stdout.strip()
    gpu = arguments.device != "cpu"
    return {
        "command": f"python benchmarks/quality_gpu.py {arguments.model.name} --device "
        f"{arguments.device} --prompt-tokens {arguments.prompt_tokens} --steps {arguments.steps} "
        f"--checked-steps {arguments.checked_steps} --threads {arguments.threads}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "device": torch.cuda.get_device_name() if gpu else "cpu (kernels' work on the host)",
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    main()
