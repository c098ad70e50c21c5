"""Quality over thousands of steps, on a CPU and on GPUs at once: many texts drawn from each prompt.

    python benchmarks/quality_long.py MODEL.gguf --out FOLDER --seconds 330 [--device cuda]
        [--gpus 4] [--gpu-workers 15] [--cpu-workers 45] [--steps 128] [--prompt-tokens 4096]

A *text* here is a prompt of ``quality_smollm2.py`` and a seed: what is drawn with it are 128
tokens. Each is decoded three times with 20 cases side by side (``long_decode.cases``): on the CPU
by the reference; on a GPU by the kernels *alone*, from the prompt on with nothing of the CPU's run;
and *steered*, on the CPU's tokens and drafts with the CPU's choices in place of its own. Queries,
keys and values are rounded to bfloat16 on both sides, the rest is float32.

Every worker is a process with one thread. Workers take the next seed of the next prompt (in this
order, whatever came out before) until the time is over; what is under way then is kept up to its
last step. ``FOLDER/long.npz`` has what was measured by step and case, ``benchmarks/long_report.py``
reads it. With ``--device cpu`` the kernels' work is done by ``gpu_exec.model.host_kernels``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from agreement_cpu import Kept
from long_decode import LongPrompt, cases, decode_until, steering
from long_tasks import Tasks
from quality_gpu import about
from quality_smollm2 import TEXTS

from gpu_exec.model.backend import PagedBackend
from gpu_exec.model.host_kernels import HostKernels
from gpu_exec.model.kernels import CudaKernels
from gpu_exec.model.rows import Steer
from oasis_sim.record import load_recorded_model
from oasis_sim.record.trajectory import Trajectory

_PACK_EVERY_S = 30.0
_LEAST_S, _LEAST_STEERED_S = 40.0, 15.0
"""A worker begins nothing new when less time is left."""


def main() -> None:
    """Start the workers and collect, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, help="what the workers share  [default: OUT/work]")
    parser.add_argument("--seconds", type=float, default=330.0)
    parser.add_argument("--steered-seconds", type=float, default=60.0, help="after the CPU's end")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--gpu-workers", type=int, default=15)
    parser.add_argument("--cpu-workers", type=int, default=45)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=4096)
    parser.add_argument("--texts", nargs="+", default=list(TEXTS), choices=TEXTS)
    parser.add_argument("--commit", help="where the tree is no repository")
    parser.add_argument("--role", choices=["run", "cpu", "gpu"], default="run")
    parser.add_argument("--end", type=float, help="of a worker, seconds since 1970")
    arguments = parser.parse_args()
    arguments.work = arguments.work or arguments.out / "work"
    torch.set_num_threads(1)
    if arguments.role == "run":
        run(arguments)
        return
    with torch.inference_mode():
        (on_cpu if arguments.role == "cpu" else on_gpu)(arguments)


def run(arguments: argparse.Namespace) -> None:
    """Start one process per prompt and per GPU worker; pack what they leave until all is done."""
    begun = time.time()
    end = begun + arguments.seconds
    arguments.work.mkdir(parents=True, exist_ok=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    children = []
    for number in range(-len(arguments.texts), arguments.gpu_workers):
        extra = ["--role", "gpu", "--end", str(end)]
        if number < 0:
            extra = ["--role", "cpu", "--end", str(end - arguments.steered_seconds)]
        elif arguments.device != "cpu":
            extra += ["--device", f"cuda:{number % arguments.gpus}"]
        extra += ["--texts", arguments.texts[number % len(arguments.texts)]]
        with (arguments.work / f"worker{number}.log").open("w") as log:
            command = [sys.executable, __file__, *sys.argv[1:], *extra]
            children.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    facts = {
        **about(arguments.device, arguments.commit),
        "workers": {"cpu": arguments.cpu_workers, "gpu": arguments.gpu_workers},
        "gpus": arguments.gpus,
        "steps": arguments.steps,
        "cases": [
            [scheme.budget_tokens, scheme.predictor, scheme.admission_cap] for scheme in cases()
        ],
    }
    packed_at = begun
    while any(child.poll() is None for child in children) and time.time() < end + 15:
        time.sleep(1.0)
        if time.time() - packed_at > _PACK_EVERY_S:
            packed_at = time.time()
            pack(arguments, facts, begun)
    for child in children:
        child.kill()
    pack(arguments, facts, begun)
    for log in sorted(arguments.work.glob("worker*.log")):
        print(log.name, log.read_text()[-300:].replace("\n", " | "))


def pack(arguments: argparse.Namespace, facts: dict[str, Any], begun: float) -> None:
    """Put all results so far in one file."""
    arrays: dict[str, Any] = {}
    for path in sorted(arguments.work.glob("*.result.npz")):
        name = path.name.removesuffix(".result.npz")
        with np.load(path) as found:
            arrays |= {f"{name}/{key}": found[key] for key in found.files}
    facts = {**facts, "seconds": round(time.time() - begun, 1)}
    place = arguments.out / "long.part.npz"
    np.savez_compressed(place, facts=json.dumps(facts), **arrays)
    place.replace(arguments.out / "long.npz")
    counts = {run: sum(f"/{run}/" in f"/{key}" for key in arrays) for run in ("cpu", "alone")}
    print(f"{time.time() - begun:.0f} s: {len(arrays)} arrays {counts}", flush=True)


def on_cpu(arguments: argparse.Namespace) -> None:
    """Read one prompt, then draw and decode seed after seed in forked processes."""
    (text,) = arguments.texts
    model = load_recorded_model(arguments.model, threads=1)
    prompt = LongPrompt(model, text, arguments.prompt_tokens, arguments.steps)
    prompt.path(seed=0, steps=2)
    count = arguments.cpu_workers // len(TEXTS)
    children = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            try:
                cpu_worker(arguments, prompt)
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def cpu_worker(arguments: argparse.Namespace, prompt: LongPrompt) -> None:
    """Decode seeds of a prompt with the reference until the time is over."""
    tasks = Tasks(arguments.work)
    while time.time() < arguments.end - _LEAST_S:
        seed = tasks.next_seed("cpu", prompt.text)
        began = time.time()
        path = prompt.path(seed)
        drafts = prompt.drafts(path)
        kept = Kept()
        found = decode_until(prompt.model, path, drafts, kept, arguments.end)
        steps = found["kl"].shape[1]
        layers = [np.stack(kept.targets[layer][:steps]) for layer in kept.targets]
        found["tokens"] = np.array(path.tokens[path.prompt_tokens :])
        found["drafts"] = np.array(drafts)
        found["seconds"] = np.array(time.time() - began)
        tasks.keep_choices(prompt.text, seed, np.stack(layers, axis=1))
        tasks.keep("cpu", prompt.text, seed, found)


def on_gpu(arguments: argparse.Namespace) -> None:
    """Decode seeds of a prompt by the kernels until the time is over.

    Alone first, as far as the CPU has begun; then steered what it has done; then alone further.
    """
    (text,) = arguments.texts
    tasks = Tasks(arguments.work)
    model = load_recorded_model(arguments.model, device=arguments.device)
    prompt = LongPrompt(model, text, arguments.prompt_tokens, arguments.steps)
    while time.time() < arguments.end - _LEAST_STEERED_S:
        done = None
        if tasks.count("alone", text) >= tasks.count("cpu", text):
            done = tasks.next_steered(text)
        if done is not None:
            steered(arguments, prompt, tasks, done)
        elif time.time() < arguments.end - _LEAST_S:
            seed = tasks.next_seed("alone", text)
            began = time.time()
            path = prompt.path(seed)
            found = by_kernels(arguments, path, prompt, prompt.drafts(path))
            tasks.keep("alone", text, seed, {**found, "seconds": np.array(time.time() - began)})
        else:
            time.sleep(0.5)


def steered(arguments: argparse.Namespace, prompt: LongPrompt, tasks: Tasks, seed: int) -> None:
    """Decode the CPU's tokens, drafts and choices."""
    began = time.time()
    expected, choices = tasks.choices(prompt.text, seed)
    path = prompt.path(seed, tokens=tuple(expected["tokens"][: len(choices) + 1].tolist()))
    full = [layer for layer, span in enumerate(path.spans) if span is None]
    steer = steering(choices, path.prompt_tokens, full, prompt.model.module.device)
    drafts = tuple(expected["drafts"].tolist())
    found = by_kernels(arguments, path, prompt, drafts, steer)
    tasks.keep("steered", prompt.text, seed, {**found, "seconds": np.array(time.time() - began)})


def by_kernels(
    arguments: argparse.Namespace,
    path: Trajectory,
    prompt: LongPrompt,
    drafts: tuple[int, ...],
    steer: Steer | None = None,
) -> dict[str, Any]:
    """Decode a trajectory on the GPU; return what was measured, and its tokens and drafts."""
    inner = HostKernels if arguments.device == "cpu" else CudaKernels
    backend = PagedBackend("paged", prompt.model.query_heads, inner, None, steer)
    found = decode_until(prompt.model, path, drafts, backend, arguments.end)
    tokens = np.array(path.tokens[path.prompt_tokens :])
    return {**found, "tokens": tokens, "drafts": np.array(drafts)}


if __name__ == "__main__":
    main()
