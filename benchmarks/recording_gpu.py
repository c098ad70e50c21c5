"""Recordings on a GPU: the same as on the CPU for tiny models; speed and memory of a larger one.

    python benchmarks/recording_gpu.py [--out validation/recording-gpu.json]

The models have random weights, so no file is needed: one tiny model per kind of attention, and one
of 1.2 billion weights (16 layers, 32 query and 8 KV heads) with a context of 32,768 tokens.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oasis_sim.record import Prompt, RecordedModel, RecordOptions, load_recorded_model, record

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
    "llama": TINY,
    "qwen3": TINY,
    "gemma3_text": {
        **TINY,
        "sliding_window": 41,
        "query_pre_attn_scalar": 24,
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
    block_tokens=8,
    draft_budget_tokens=48,
    drafters=("skip", "ngram", "oracle"),
    max_perplexity=1e9,
)


def main() -> None:
    """Compare, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the numbers as JSON, too")
    parser.add_argument("--commit", help="commit that is measured, where there is no git")
    arguments = parser.parse_args()
    found = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": arguments.commit or commit(),
        "command": "python benchmarks/recording_gpu.py",
        "tiny": [compare(kind) for kind in KINDS],
        "large": [measure(tokens) for tokens in (8_192, 16_384, 32_704)],
    }
    print(json.dumps(found, indent=2))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


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


def compare(kind: str) -> dict[str, Any]:
    """Record a tiny model on both devices; return how far the traces are apart."""
    with tempfile.TemporaryDirectory() as folder:
        save_random(Path(folder), kind, KINDS[kind], torch.float32)
        models = [load_recorded_model(folder, device=device) for device in ("cpu", "cuda")]
    first, second = (
        record(model, random_prompt(model, 96, 21), OPTIONS, name="tiny") for model in models
    )
    assert first.exact_mass is not None
    assert second.exact_mass is not None
    one, two = first.trace, second.trace
    return {
        "kind": kind,
        "largest_mass_difference": float(np.abs(first.exact_mass - second.exact_mass).max()),
        "same_order_places": float((one.use_order == two.use_order).mean()),
        "same_drafts": {
            name: float((one.draft_token[name] == two.draft_token[name]).mean())
            for name in one.drafters
        },
        "same_draft_order_places": {
            name: float((one.pred_order[name] == two.pred_order[name]).mean())
            for name in one.drafters
        },
    }


def measure(tokens: int) -> dict[str, Any]:
    """Record the large model in bfloat16; return seconds by stage and memory of the GPU."""
    with tempfile.TemporaryDirectory() as folder:
        save_random(Path(folder), "llama", LARGE, torch.bfloat16)
        model = load_recorded_model(folder, device="cuda", dtype="bfloat16")
    options = replace(
        OPTIONS, block_tokens=16, draft_budget_tokens=2048, chunk_tokens=1024, steps=64
    )
    stages: dict[str, float] = {}
    begun: dict[str, float] = {}

    def watch(stage: str, done: int, total: int) -> None:
        torch.cuda.synchronize()
        begun.setdefault(stage, time.perf_counter())
        if done == total:
            stages[stage] = round(time.perf_counter() - begun[stage], 2)

    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    record(model, random_prompt(model, tokens, 65), options, name="large", progress=watch)
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
