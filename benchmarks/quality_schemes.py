"""What the schemes of others cost a real model, each in its own units, beside OasisKV.

    python benchmarks/quality_schemes.py MODEL.gguf prose [--steps 48] [--out FILE.json] | --table

One trajectory of SmolLM2 on a text of ``benchmarks/quality_smollm2.py``; about 512 attended tokens
for each scheme (InfiniGen: its 400; ShadowKV: 320 chosen, 128 outliers and its local chunks;
FreeKV: 128 sink and 128 recent, as in its published accuracy runs). Keys and values are rounded to
bfloat16.
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
from quality_index import decode_options, prompt_of
from quality_smollm2 import ROOT, TEXTS, commit

from oasis_sim.quality import QualityOptions, own_units
from oasis_sim.quality.bootstrap import BlockBootstrap, Estimate
from oasis_sim.quality.study import study_trajectory
from oasis_sim.record import ProgressLines, RecordedModel, load_recorded_model
from oasis_sim.record.trajectory import Trajectory, follow
from oasis_sim.scheme import Scheme, load_scheme, with_options

RESULT = ROOT / "validation" / "quality-schemes.json"
ALWAYS = {"sink_blocks": 1, "recent_blocks": 2, "recent_in_budget": True, "budget_tokens": 512}
TOKENS = {"sink_blocks": 16, "recent_blocks": 32, "recent_in_budget": True, "budget_tokens": 512}
PARTS: dict[str, dict[str, Any]] = {
    "oracle": ALWAYS,
    "on-demand": ALWAYS,
    "oasis": {**ALWAYS, "fetch_ratio": 0.05},
    "oasis-fp8": {**ALWAYS, "fetch_ratio": 0.05},
    "oasis-pool": {**ALWAYS, "fetch_ratio": 0.05},
    "oasis-shared": {**ALWAYS, "fetch_ratio": 0.05},
    "previous-token": {**ALWAYS, "fetch_ratio": 0.05},
    "hisparse": TOKENS,
    "belady": TOKENS,
    "infinigen": {},
    "freekv": {"sink_blocks": 4, "recent_blocks": 4, "budget_tokens": 512},
    "shadowkv": {"sink_blocks": 16, "budget_tokens": 320},
}
"""Schemes and what is changed about them, in their own units."""


def main() -> None:
    """Decode each scheme and write what was found, or print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("text", choices=TEXTS, nargs="?", default="prose")
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if arguments.table:
        print("\n".join(table(json.loads(RESULT.read_text(encoding="utf-8")))))
        return
    model = load_recorded_model(arguments.model)
    found = study(model, arguments.text, arguments.steps)
    arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def study(model: RecordedModel, text: str, steps: int) -> dict[str, Any]:
    """Decode one text by every scheme."""
    options = decode_options(TEXTS[text], steps)
    with torch.inference_mode():
        path = follow(model, prompt_of(model, TEXTS[text]), options, ProgressLines(sys.stderr))
    rows = [
        decode(model, path, with_options(own_units(load_scheme(name)), **parts), text)
        for name, parts in PARTS.items()
    ]
    return {
        "command": f"python benchmarks/quality_schemes.py MODEL {text} --steps {steps}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "text": text,
        "model": model.header(),
        "prompt_tokens": path.prompt_tokens,
        "steps": steps,
        "schemes": rows,
    }


def decode(model: RecordedModel, path: Trajectory, scheme: Scheme, text: str) -> dict[str, Any]:
    """Decode one scheme."""
    decoding = decode_options(TEXTS[text], path.steps, scheme.block_tokens)
    options = QualityOptions(decoding, free_run=False, kv_16bit=True)
    prompt = prompt_of(model, TEXTS[text])
    result = study_trajectory(
        model, prompt, path, [scheme], options, ProgressLines(sys.stderr)
    ).to_json()
    (case,) = result["cases"]
    (about,) = result["schemes"]
    return {**case, "scheme": scheme.to_config(), "key_index": about["key_index"]}


def table(found: dict[str, Any]) -> list[str]:
    """Return the rows for docs/quality.md; KL beside that of ``on-demand`` is paired by step."""
    boot = BlockBootstrap(found["steps"] - 1, resamples=2000, seed=0)
    kl = {row["scheme"]["name"]: np.array(row["kl_by_step"]) for row in found["schemes"]}
    more = {name: boot.estimate(steps - kl["on-demand"]) for name, steps in kl.items()}
    return [markdown(row, more[row["scheme"]["name"]]) for row in found["schemes"]]


def markdown(row: dict[str, Any], more: Estimate) -> str:
    """Return a scheme's row."""
    kl, scheme = row["kl"], row["scheme"]
    above = f"{more.mean:+.3f} [{more.low:+.3f}, {more.high:+.3f}]"
    above = "-" if scheme["name"] == "on-demand" else above
    tokens = (
        row["chosen_blocks"] + scheme.get("sink_blocks", 0) + scheme.get("recent_blocks", 0)
    ) * scheme["block_tokens"]
    return (
        f"| {scheme['name']} | {scheme['block_tokens']} | {tokens} | {kl['mean']:.3f} "
        f"[{kl['low']:.3f}, {kl['high']:.3f}] "
        f"| {above} | {row['top1_agreement']['mean']:.2f} "
        f"| {row['nll_difference']['mean']:+.3f} | {row['attention_mass']['mean']:.3f} "
        f"| {row['overlap']['mean']:.2f} | {row['bytes_per_step'] / 2**20:.2f} |"
    )


if __name__ == "__main__":
    main()
