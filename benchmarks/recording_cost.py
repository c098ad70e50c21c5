"""What a recording costs: seconds of each stage, and memory beyond the loaded model.

    taskset -c 0 python benchmarks/recording_cost.py MODEL TEXT [--out FILE.json]

Linux only: the peak of the resident memory is reset before each recording (clear_refs). Prompts of
several lengths show what grows with the context: keys and values, and nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from oasis_sim.record import (
    PromptRequest,
    RecordedModel,
    RecordOptions,
    SourceText,
    build_prompt,
    load_recorded_model,
    load_text,
    record,
)

ROOT = Path(__file__).parents[1]
MIB = 1 << 20


def main() -> None:
    """Load once, record prompts of several lengths, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--prompts", type=int, nargs="+", default=[1024, 2048, 4096, 8064])
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--out", type=Path, help="write the numbers as JSON, too")
    arguments = parser.parse_args()
    start_s = time.perf_counter()
    model = load_recorded_model(arguments.model)
    loading_s, loading_peak_mib = time.perf_counter() - start_s, memory_mib("VmHWM")
    text = load_text(arguments.text, "see its folder")
    rows = [measure(model, text, tokens, arguments.steps) for tokens in arguments.prompts]
    found = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "command": "taskset -c 0 python benchmarks/recording_cost.py "
        f"{arguments.model.name} {arguments.text.name}",
        "machine": f"{cpu_name()}, one of {os.cpu_count()} cores, {platform.system()}",
        "model": model.header(),
        "loading_s": round(loading_s, 1),
        "loading_peak_mib": loading_peak_mib,
        "weights_mib": weights_mib(model),
        "chunk_tokens": RecordOptions().chunk_tokens,
        "rows": rows,
    }
    print(json.dumps(found, indent=2))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def measure(model: RecordedModel, text: SourceText, tokens: int, steps: int) -> dict[str, Any]:
    """Record once; return seconds by stage and memory."""
    prompt = build_prompt(model.tokenizer, text, PromptRequest(tokens=tokens), 0)
    options = RecordOptions(
        steps=steps, trajectory="sample", ignore_eos=True, drafters=("skip",), max_perplexity=1e6
    )
    before_mib = memory_mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    stages: dict[str, float] = {}
    begun: dict[str, float] = {}

    def watch(stage: str, done: int, total: int) -> None:
        begun.setdefault(stage, time.perf_counter())
        if done == total:
            stages[stage] = round(time.perf_counter() - begun[stage], 2)

    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    record(model, prompt, options, name="cost", progress=watch)
    peak_mib = memory_mib("VmHWM")
    values = 2 * model.layers * model.kv_heads * model.head_dim * (tokens + steps)
    return {
        "prompt_tokens": tokens,
        "steps": steps,
        "wall_s": round(time.perf_counter() - start_s, 1),
        "cpu_s": round(time.process_time() - start_cpu_s, 1),
        "stages_s": stages,
        "memory_before_mib": before_mib,
        "peak_above_model_mib": round(peak_mib - before_mib, 1),
        "keys_and_values_mib": round(values * 4 / MIB, 1),
    }


def memory_mib(key: str) -> float:
    """Return a line of the process's own memory: VmRSS now, VmHWM the peak."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{key}:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise RuntimeError(f"no {key} on this system")


def weights_mib(model: RecordedModel) -> float:
    """Return the size of the weights, shared ones once."""
    total = sum(each.numel() * each.element_size() for each in model.module.parameters())
    return round(total / MIB, 1)


def cpu_name() -> str:
    """Return the processor's name."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((each.partition(":")[2].strip() for each in lines if "model name" in each), "CPU")


def commit() -> str:
    """Return the commit of the working tree."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
