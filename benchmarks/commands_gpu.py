"""`oasis-sim record` and `quality` as a user types them, with --device cuda, from text to file.

    python benchmarks/commands_gpu.py MODEL.gguf --out FOLDER [--device cuda]
    python benchmarks/commands_gpu.py MODEL.gguf --gemma-tokens IDS.json --out FOLDER

SmolLM2 records and decodes the prose; with ``--gemma-tokens``, token ids of the prose, Gemma 3 is
recorded as docs/recording.md records it. Writes ``commands-gpu-NAME.json``: command, exit code,
seconds and what it printed, and the trace beside the shipped one, which a CPU recorded in float32.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from quality_gpu import ROOT, about
from recording_gpu import beside

from oasis_sim.trace import load_trace

PROSE = ROOT / "traces" / "texts" / "prose.txt"
RECORD = (
    "--trajectory sample --temperature 0.6 --seed 1 --draft-budget 1024 --licence CC0-1.0 "
    "--drafter skip"
)
SMOLLM2 = f"--text {PROSE} --prompt-tokens 4096 --layers 3-28:5 --model-name SmolLM2-135M-Instruct"
GEMMA = "--layers full --drafter ngram --model-name gemma-3-270m"
QUALITY = (
    f"--text {PROSE} --prompt-tokens 4096 --trajectory sample --temperature 0.6 --seed 1 "
    "--ignore-eos --budget 512,1024 --fetch-ratio 0,0.05,0.2,all --predictor draft "
    "--predictor previous --format json"
)
SHOWN = 2000


def main() -> None:
    """Run the commands and write what they said."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--gemma-tokens", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, help="fewer steps, for a trial")
    parser.add_argument("--commit", help="where the tree is no repository")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    gemma = arguments.gemma_tokens is not None
    name = "gemma3-270m" if gemma else "smollm2"
    trace = arguments.out / f"{name}-prose-gpu.npz"
    extra = f"--tokens {arguments.gemma_tokens} {GEMMA}" if gemma else SMOLLM2
    found: dict[str, Any] = about("cpu" if arguments.device == "cpu" else "cuda", arguments.commit)
    found["record"] = command(arguments, "record", f"{RECORD} {extra} --out {trace}")
    if trace.exists():
        shipped = load_trace(ROOT / "traces" / f"{name}-prose.npz")
        made = load_trace(trace)
        found["beside_the_shipped_trace"] = beside(shipped, made, (32, 64))
        found["header"] = dict(made.meta)
    if not gemma:
        found["quality"] = command(arguments, "quality", QUALITY)
    place = arguments.out / f"commands-gpu-{name}.json"
    place.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in found.items() if key != "quality"}, indent=1))


def command(arguments: argparse.Namespace, name: str, options: str) -> dict[str, Any]:
    """Run one command of the program; return what it said. A study's JSON is kept as it is."""
    steps = [] if arguments.steps is None else ["--steps", str(arguments.steps)]
    words = [name, str(arguments.model), *options.split(), *steps, "--device", arguments.device]
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(ROOT / "cli.py"), *words], capture_output=True, text=True, check=False
    )
    shown = [Path(word).name if "/" in word else word for word in words]
    said = json.loads(done.stdout) if done.stdout.startswith("{") else done.stdout[-SHOWN:]
    return {
        "command": " ".join(["oasis-sim", *shown]),
        "exit_code": done.returncode,
        "seconds": round(time.monotonic() - started, 1),
        "stdout": said,
        "stderr": done.stderr[-SHOWN:],
    }


if __name__ == "__main__":
    main()
