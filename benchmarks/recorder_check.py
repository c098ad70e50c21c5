"""The recorder against an independent forward pass, with real weights.

    python benchmarks/recorder_check.py MODEL.gguf ... [--out validation/recorder-check.json]

The other side is the library alone: its own GGUF loader, its eager attention with weights, queries
and keys taken by hooks and rotated in float64 (``tests/record/reference.py``). Both read the start
of ``traces/texts/prose.txt`` and 16 tokens after it, long enough for Gemma 3's sliding windows of
512 tokens to matter. Compared: the order of blocks by layer, head and step, the attention mass of
every block, and the logits.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from quality_smollm2 import ROOT, commit
from transformers import AutoModelForCausalLM

from oasis_sim.record import (
    ProgressLines,
    PromptRequest,
    RecordOptions,
    build_prompt,
    load_recorded_model,
    load_text,
    record,
)

sys.path.insert(0, str(ROOT))
from tests.record.reference import EagerModel, block_sums

PROMPT, STEPS, BLOCK = 768, 16, 16


def main() -> None:
    """Compare each model and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = [compare(model) for model in arguments.models]
    names = " ".join(model.name for model in arguments.models)
    found = {
        "command": f"python benchmarks/recorder_check.py {names}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "prompt_tokens": PROMPT,
        "steps": STEPS,
        "block_tokens": BLOCK,
        "models": rows,
    }
    print(json.dumps(found, indent=1))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def compare(place: Path) -> dict[str, Any]:
    """Record the text and read it with the library alone; return how far they differ."""
    model = load_recorded_model(place)
    source = load_text(ROOT / "traces" / "texts" / "prose.txt", "CC0-1.0")
    prompt = build_prompt(model.tokenizer, source, PromptRequest(tokens=PROMPT), STEPS + 1)
    options = RecordOptions(
        steps=STEPS, trajectory="text", block_tokens=BLOCK, drafters=(), draft_budget_tokens=BLOCK
    )
    got = record(model, prompt, options, name="check", progress=ProgressLines(sys.stderr))
    header = model.header()
    del model
    eager = EagerModel(
        AutoModelForCausalLM.from_pretrained(
            place.parent,
            gguf_file=place.name,
            attn_implementation="eager",
            dtype=torch.float32,
        )
    )
    trace = got.trace
    _, weights = eager.run([*prompt.tokens, *trace.token[:-1].tolist()])
    places, swapped, gap, mass = 0, 0, 0.0, 0.0
    for layer, span in enumerate(trace.meta["layer_span"]):
        for step, position in enumerate(trace.position.tolist()):
            scores = eager.bounds(layer, position, BLOCK)
            sums = block_sums(weights[layer][:, position], eager.heads, BLOCK, trace.mass.shape[-1])
            mass = max(mass, float(np.abs(sums - got.exact_mass[step, layer]).max()))
            ids = np.arange(position // BLOCK)
            ids = ids if span is None else ids[(ids + 1) * BLOCK - 1 > position - span]
            for head in range(trace.kv_heads):
                order = trace.use_order[step, layer, head]
                listed, expected = order[order != 65535], best_first(scores[head], ids)
                assert sorted(listed) == sorted(expected)
                places += len(ids)
                swapped += int((listed != expected).sum())
                gap = max(gap, largest_gap(scores[head], listed, expected))
    return {
        "model": header,
        "layers_with_windows": sum(span is not None for span in trace.meta["layer_span"]),
        "head_dim": eager.dim,
        "orders": trace.steps * trace.layers * trace.kv_heads,
        "places": places,
        "places_that_differ": swapped,
        "largest_gap_of_exchanged_scores": gap,
        "largest_mass_difference": mass,
    }


def best_first(scores: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return blocks best first, ties to the lower id."""
    return ids[np.argsort(-scores[ids], kind="stable")]


def largest_gap(scores: np.ndarray, listed: np.ndarray, expected: np.ndarray) -> float:
    """Return how far scores at one place of two orders lie apart, as a share of the largest."""
    gap = np.abs(scores[listed] - scores[expected])
    return float(gap.max() / np.abs(scores[expected]).max())


if __name__ == "__main__":
    main()
