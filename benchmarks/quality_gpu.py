"""Every call of the GPU kernels on a real model's queries and keys, against plain arithmetic.

    python benchmarks/quality_gpu.py MODEL.gguf --out validation/quality-gpu-checks.json
        [--device cuda] [--text prose.txt] [--prompt-tokens 4096] [--steps 6]

A sparse decode of eight cases side by side, and full attention, over the kernels. Each call is
repeated on its own inputs in float64, or by the selection's text compiled for the CPU
(``gpu_exec.model.checked``). With ``--device cpu`` the kernels' work is done by
``gpu_exec.model.host_kernels``. ``quality_agreement.py`` compares whole runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from gpu_exec.model.backend import PagedBackend
from gpu_exec.model.checked import CheckedKernels
from gpu_exec.model.host_kernels import HostKernels
from gpu_exec.model.kernels import CudaKernels
from oasis_sim.quality import vary_scheme
from oasis_sim.quality.backend import Backend, LoopPlan
from oasis_sim.quality.decode import Decoding, plan_of
from oasis_sim.quality.start import Start
from oasis_sim.record import (
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

ROOT = Path(__file__).parents[1]
CASES = {"draft": (0.05, 0.2, 1.0), "previous": (1.0,)}
BUDGETS = (512, 1024)


def main() -> None:
    """Decode, compare and write what was counted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--text", default="prose.txt", help="of traces/texts")
    parser.add_argument("--prompt-tokens", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--commit", help="where the tree is no repository")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with torch.inference_mode():
        found = checks(arguments)
    arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


def checks(arguments: argparse.Namespace) -> dict[str, Any]:
    """Check the kernels on the model's first steps."""
    model = load_recorded_model(arguments.model, device=arguments.device)
    text = load_text(ROOT / "traces" / "texts" / arguments.text, "not stated")
    request = PromptRequest(tokens=arguments.prompt_tokens, question=None)
    prompt = build_prompt(model.tokenizer, text, request, 0)
    path = follow(model, prompt, options(arguments.steps + 2), no_progress)
    drafts = tuple(drafter_of(model).draft(model, path, no_progress))
    make = HostKernels if arguments.device == "cpu" else CudaKernels
    schemes = all_schemes()
    tally = check_kernels(model, path, schemes, drafts, make, arguments.steps)
    facts = {"text": arguments.text, "prompt_tokens": len(prompt.tokens), "steps": arguments.steps}
    about_run = about(arguments.device, arguments.commit)
    return {**about_run, "model": model.header(), **facts, "rows": len(schemes), **tally}


def all_schemes() -> list[Scheme]:
    """Return the cases that are decoded side by side."""
    return [
        scheme
        for predictor, ratios in CASES.items()
        for scheme in vary_scheme(load_scheme("oasis"), BUDGETS, ratios, [predictor])
    ]


def options(steps: int) -> RecordOptions:
    """Return how the trajectory is made."""
    return RecordOptions(
        steps=steps,
        trajectory="sample",
        temperature=0.6,
        seed=1,
        ignore_eos=True,
        drafters=("skip",),
        draft_budget_tokens=512,
    )


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


def about(device: str, commit: str | None) -> dict[str, Any]:
    """Return command, date, commit and who computed."""
    if commit is None:
        command = ["git", "rev-parse", "HEAD"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        commit = done.stdout.strip()
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    found = {
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "device": "cpu (kernels' work on the host)",
        "torch": torch.__version__,
    }
    if device != "cpu":
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()
        found |= {"device": torch.cuda.get_device_name(), "driver": driver[0] if driver else "?"}
    return found


if __name__ == "__main__":
    main()
