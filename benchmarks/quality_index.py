"""What extreme keys in 8 bits cost: the choice of blocks, and KL, beside exact ones.

    python benchmarks/quality_index.py MODEL.gguf TEXT ... --out FOLDER [--steps 48]

TEXT is prose, code or question for SmolLM2 (prompts of ``benchmarks/quality_smollm2.py``), or
gemma3 for the prose with Gemma 3 270M. Queries, keys and values are rounded to bfloat16 and extreme
keys to e4m3, outwards, as ``gpu_exec`` keeps them with ``key_format="fp8"``. Both kinds of index
decode the same trajectory; differences of KL are paired. Results: ``quality-index-fp8-TEXT.json``;
``--table`` prints all under ``validation/`` as Markdown.
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
from quality_smollm2 import ROOT, TEXTS, Text, commit, working_set_scheme

from oasis_sim.quality import QualityOptions, vary_scheme
from oasis_sim.quality.bootstrap import BlockBootstrap
from oasis_sim.quality.study import study_trajectory
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
from oasis_sim.record.trajectory import follow
from oasis_sim.scheme import Scheme

BUDGETS = (512, 1024)
RATIOS = (0.05, 0.2)
ALL_TEXTS = {**TEXTS, "gemma3": Text("prose.txt", 3840, None, 0.6, 1)}


def main() -> None:
    """Decode the texts and write what was found, or print all results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("texts", nargs="*")
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--out", type=Path, default=ROOT / "validation")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if arguments.table:
        for path in sorted((ROOT / "validation").glob("quality-index-fp8-*.json")):
            markdown(json.loads(path.read_text(encoding="utf-8")))
        return
    model = load_recorded_model(arguments.model)
    for text in arguments.texts:
        write(study(model, text, arguments.steps), arguments.out)


def write(found: dict[str, Any], folder: Path) -> None:
    """Write a text's result."""
    place = folder / f"quality-index-fp8-{found['text']}.json"
    place.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def prompt_of(model: RecordedModel, text: Text) -> Prompt:
    """Return a text's prompt."""
    source = load_text(ROOT / "traces" / "texts" / text.file, "CC0-1.0")
    request = PromptRequest(tokens=text.prompt_tokens, question=text.question)
    return build_prompt(model.tokenizer, source, request, 0)


def decode_options(text: Text, steps: int, block_tokens: int = 16) -> RecordOptions:
    """Return how a text's trajectory is made."""
    return RecordOptions(
        steps=steps,
        trajectory="sample",
        temperature=text.temperature,
        seed=text.seed,
        ignore_eos=True,
        drafters=("skip",),
        block_tokens=block_tokens,
        draft_budget_tokens=512,
    )


def study(model: RecordedModel, name: str, steps: int) -> dict[str, Any]:
    """Decode one text with both kinds of index."""
    text, show = ALL_TEXTS[name], ProgressLines(sys.stderr)
    prompt, decode = prompt_of(model, text), decode_options(text, steps)
    base = working_set_scheme()
    schemes: tuple[Scheme, ...] = vary_scheme(base, BUDGETS, RATIOS, ["draft"])
    with torch.inference_mode():
        path = follow(model, prompt, decode, show)
    exact, rounded = (
        study_trajectory(
            model,
            prompt,
            path,
            schemes,
            QualityOptions(decode, free_run=False, kv_16bit=True, index_fp8=fp8),
            show,
        ).to_json()
        for fp8 in (False, True)
    )
    boot = BlockBootstrap(steps - 1, resamples=2000, seed=0)
    more = [
        boot.estimate(np.array(eight["kl_by_step"]) - np.array(sixteen["kl_by_step"])).to_json()
        for sixteen, eight in zip(exact["cases"], rounded["cases"], strict=True)
    ]
    return {
        "command": f"python benchmarks/quality_index.py MODEL {name} --steps {steps}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "text": name,
        "kl_difference": more,
        "exact": exact,
        "fp8": rounded,
    }


def markdown(found: dict[str, Any]) -> None:
    """Print a text's rows for the documentation."""
    cases = zip(found["exact"]["cases"], found["fp8"]["cases"], found["kl_difference"], strict=True)
    for exact, eight, more in cases:
        alike = eight["index_agreement"]
        print(
            f"| {found['text']} | {exact['budget_tokens']:,} | {exact['fetch_ratio']:g} "
            f"| {alike['mean']:.3f} [{alike['low']:.3f}, {alike['high']:.3f}] "
            f"| {exact['kl']['mean']:.4f} | {eight['kl']['mean']:.4f} "
            f"| {more['mean']:+.4f} [{more['low']:+.4f}, {more['high']:+.4f}] "
            f"| {exact['attention_mass']['mean']:.3f} / {eight['attention_mass']['mean']:.3f} "
            f"| {exact['overlap']['mean']:.3f} / {eight['overlap']['mean']:.3f} |"
        )


if __name__ == "__main__":
    main()
