"""Recordings through the GPU kernels: each call checked, beside the CPU; speed of a larger model.

    python benchmarks/recording_gpu.py [MODEL.gguf] [--out validation/recording-gpu.json]
        [--device cuda] [--no-large]

Tiny models of random weights, of head dimensions 64, 128 and 256, are recorded by the kernels with
every call compared with plain arithmetic (``gpu_exec.model.checked``), and by the library on the
CPU. SmolLM2's GGUF file is recorded as docs/recording.md records the prose, its first steps
checked, and put beside the shipped trace. A model of 1.2 billion random weights (16 layers, 32
query and 8 KV heads) is timed. With ``--device cpu`` the kernels' work is done by
``gpu_exec.model.host_kernels``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpu_exec.model.checked import CheckedKernels
from gpu_exec.model.host_kernels import HostKernels
from gpu_exec.model.kernels import CudaKernels
from gpu_exec.model.recording import PagedRecording
from oasis_sim.record import (
    Prompt,
    PromptRequest,
    RecordedModel,
    RecordOptions,
    build_prompt,
    load_recorded_model,
    load_text,
    record_all,
)
from oasis_sim.record.progress import no_progress
from oasis_sim.record.recorder import Recording
from oasis_sim.trace import AttentionTrace, load_trace

ROOT = Path(__file__).parents[1]
COMMON = {"vocab_size": 64, "bos_token_id": None, "pad_token_id": None, "eos_token_id": 0}
TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 512,
    "initializer_range": 0.25,
    "tie_word_embeddings": False,
}
WINDOWS = ["sliding_attention", "sliding_attention", "full_attention"] * 2
KINDS = {
    "llama": {**TINY, "head_dim": 64},
    "qwen3": {**TINY, "head_dim": 128},
    "gemma3_text": {
        **TINY,
        "head_dim": 256,
        "sliding_window": 41,
        "query_pre_attn_scalar": 256,
        "layer_types": WINDOWS[:5],
    },
}
LARGE = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 32_768,
    "vocab_size": 64_000,
}
OPTIONS = RecordOptions(
    steps=20,
    trajectory="text",
    draft_budget_tokens=64,
    drafters=("skip", "ngram", "oracle"),
    max_perplexity=1e9,
)
PROSE = RecordOptions(
    trajectory="sample",
    temperature=0.6,
    seed=1,
    drafters=("skip",),
    draft_budget_tokens=1024,
    layers="3-28:5",
)
CHECKED_STEPS = 6


def main() -> None:
    """Compare, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-large", action="store_true")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON, too")
    parser.add_argument("--commit", help="commit that is measured, where there is no git")
    arguments = parser.parse_args()
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    found: dict[str, Any] = {
        **device_facts(arguments.device),
        "torch": torch.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": arguments.commit or commit(),
        "command": " ".join(["python benchmarks/recording_gpu.py", *words]),
        "tiny": [compare(kind, arguments.device) for kind in KINDS],
    }
    if arguments.model is not None:
        found["smollm2_prose"] = real(arguments.model, arguments.device)
    if not arguments.no_large:
        found["large"] = [measure(tokens) for tokens in (8_192, 16_384, 32_704)]
    print(json.dumps(found, indent=1))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def device_facts(device: str) -> dict[str, str]:
    """Return card and driver."""
    if device == "cpu":
        return {"gpu": "none (kernels' work on the host)"}
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()
    return {"gpu": torch.cuda.get_device_name(), "driver": driver[0] if driver else "?"}


def backend_of(
    model: RecordedModel, chosen: int, checked: list[CheckedKernels] | None = None
) -> PagedRecording:
    """Return the kernels' backend, with every call checked where a list is given."""
    inner = HostKernels if model.device == "cpu" else CudaKernels

    def make(shape: Any, device: Any) -> Any:
        kernels = inner(shape, device)
        if checked is None:
            return kernels
        counts = torch.full((shape.rows,), chosen)
        checked.append(CheckedKernels(kernels, shape, device, counts))
        return checked[-1]

    return PagedRecording("kernels, bfloat16", model.query_heads, make)


def record(
    model: RecordedModel,
    prompt: Prompt,
    options: RecordOptions,
    backend: PagedRecording | None,
    progress: Any = no_progress,
) -> Recording:
    """Record one block size."""
    names = {options.block_tokens: "trace"}
    found = record_all(model, prompt, options, names=names, backend=backend, progress=progress)
    return next(found)


def tallies(checked: list[CheckedKernels]) -> dict[str, Any]:
    """Return what was counted over all kernels of a recording: sums, and the largest errors."""
    found: dict[str, Any] = {}
    for kernels in checked:
        for name, value in kernels.tally.to_json().items():
            known = found.get(name, 0)
            found[name] = known + value if isinstance(value, int) else max(known, value)
    return found


def beside(one: AttentionTrace, two: AttentionTrace, budgets: tuple[int, ...]) -> dict[str, Any]:
    """Return how far two traces are apart: tokens, drafts, and the best blocks of their orders."""
    steps = min(len(one.token), len(two.token)) - 1
    same = one.token[: steps + 1] == two.token[: steps + 1]
    steps = steps if same.all() else int(np.argmin(same))
    found: dict[str, Any] = {"steps_of_equal_tokens": steps, "steps": len(one.token) - 1}
    orders = {"true": (one.use_order, two.use_order)}
    for name in one.drafters:
        drafts = one.draft_token[name][:steps] == two.draft_token[name][:steps]
        found[f"same_drafts_{name}"] = int(drafts.sum())
        orders[name] = (one.pred_order[name], two.pred_order[name])
    for name, pair in orders.items():
        for blocks in budgets:
            left, right = (order[:steps, ..., :blocks, None] for order in pair)
            shared = (left == right.swapaxes(-1, -2)).any(axis=-1)
            found[f"shared_of_best_{blocks}_{name}"] = float(shared.mean())
    return found


def save_random(folder: Path, kind: str, changes: dict[str, Any], dtype: torch.dtype) -> None:
    """Write a model with random weights, and a tokenizer of as many words."""
    from tokenizers import Tokenizer, models
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    config = AutoConfig.for_model(kind, **{**COMMON, **changes})
    vocab = {f"w{number}": number for number in range(config.vocab_size)}
    inner = Tokenizer(models.WordLevel(vocab, unk_token="w1"))
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="w1").save_pretrained(folder)
    torch.manual_seed(7)
    AutoModelForCausalLM.from_config(config).to(dtype).save_pretrained(folder)


def random_prompt(model: RecordedModel, tokens: int, follow: int) -> Prompt:
    """Return random tokens and those that follow."""
    ids = np.random.default_rng(11).integers(2, model.vocab, tokens + follow).tolist()
    header = {"name": "random", "licence": "CC0-1.0"}
    return Prompt(tuple(ids[:tokens]), tuple(ids[tokens:]), header)


def compare(kind: str, device: str) -> dict[str, Any]:
    """Record a tiny model by the checked kernels and by the library on the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        save_random(Path(folder), kind, KINDS[kind], torch.float32)
        first, second = (load_recorded_model(folder, device=where) for where in ("cpu", device))
    prompt = random_prompt(first, 150, 21)
    checked: list[CheckedKernels] = []
    expected = record(first, prompt, OPTIONS, None)
    found = record(second, prompt, OPTIONS, backend_of(second, OPTIONS.chosen_blocks, checked))
    assert expected.exact_mass is not None
    assert found.exact_mass is not None
    return {
        "kind": kind,
        "head_dim": second.head_dim,
        "largest_mass_difference": float(np.abs(expected.exact_mass - found.exact_mass).max()),
        **beside(expected.trace, found.trace, (4,)),
        "kernel_checks": tallies(checked),
    }


def real(path: Path, device: str) -> dict[str, Any]:
    """Record the prose with SmolLM2: first steps checked, then all beside the shipped trace."""
    model = load_recorded_model(path, device=device)
    text = load_text(ROOT / "traces" / "texts" / "prose.txt", "CC0-1.0")
    prompt = build_prompt(model.tokenizer, text, PromptRequest(tokens=4096, question=None), 0)
    checked: list[CheckedKernels] = []
    few = replace(PROSE, steps=CHECKED_STEPS)
    record(model, prompt, few, backend_of(model, few.chosen_blocks, checked))
    started = time.perf_counter()
    found = record(model, prompt, PROSE, backend_of(model, PROSE.chosen_blocks))
    seconds = time.perf_counter() - started
    shipped = load_trace(ROOT / "traces" / "smollm2-prose.npz")
    return {
        "prompt_tokens": len(prompt.tokens),
        "seconds": round(seconds, 2),
        "beside_the_shipped_trace": beside(shipped, found.trace, (32, 64)),
        "checked_steps": CHECKED_STEPS,
        "kernel_checks": tallies(checked),
    }


def measure(tokens: int) -> dict[str, Any]:
    """Record the large model in bfloat16; return seconds by stage and memory of the GPU."""
    with tempfile.TemporaryDirectory() as folder:
        save_random(Path(folder), "llama", LARGE, torch.bfloat16)
        model = load_recorded_model(folder, device="cuda", dtype="bfloat16")
    options = replace(OPTIONS, draft_budget_tokens=2048, chunk_tokens=1024, steps=64)
    stages: dict[str, float] = {}
    begun: dict[str, float] = {}

    def watch(stage: str, done: int, total: int) -> None:
        torch.cuda.synchronize()
        begun.setdefault(stage, time.perf_counter())
        if done == total:
            stages[stage] = round(time.perf_counter() - begun[stage], 2)

    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    backend = backend_of(model, options.chosen_blocks)
    record(model, random_prompt(model, tokens, 65), options, backend, watch)
    values = 2 * model.layers * model.kv_heads * model.head_dim * (tokens + options.steps) * 2
    peak = torch.cuda.max_memory_allocated()
    return {
        "prompt_tokens": tokens,
        "steps": options.steps,
        "chunk_tokens": options.chunk_tokens,
        "stages_s": stages,
        "weights_gb": before / 1e9,
        "keys_and_values_gb": values / 1e9,
        "peak_above_weights_gb": (peak - before) / 1e9,
    }


def commit() -> str:
    """Return the commit of the working tree."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
