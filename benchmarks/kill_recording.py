"""Kill a recording again and again, let it go on, and compare the bytes with an undisturbed one.

    python benchmarks/kill_recording.py MODEL TEXT --kills 6 --out validation/kill-recording.json

Each attempt runs the same command with the same checkpoint folder; all but the last are ended by
SIGKILL after a random time. Two block sizes and two drafters are recorded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SIZES = (16, 32)


def main() -> None:
    """Record undisturbed, then with kills; print and write what happened."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the numbers as JSON, too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = trial(arguments, Path(folder))
    print(json.dumps(found, indent=2))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    sys.exit(0 if found["same_bytes"] else 1)


def trial(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the attempts and whether the files are the same."""
    words = [sys.executable, str(ROOT / "cli.py"), "record", str(arguments.model)]
    words += ["--text", str(arguments.text), "--prompt-tokens", str(arguments.prompt_tokens)]
    words += ["--trajectory", "sample", "--ignore-eos", "--draft-budget", "512", "--quiet"]
    words += ["--block-size", ",".join(map(str, SIZES)), "--chunk-tokens", "128", "--force"]
    begun_s = time.monotonic()
    (folder / "whole").mkdir()
    subprocess.run([*words, "--out", str(folder / "whole" / "t.npz")], check=True)
    whole_s = time.monotonic() - begun_s
    dice = random.Random(arguments.seed)
    checkpoint = folder / "checkpoint"
    (folder / "killed").mkdir()
    again = [*words, "--out", str(folder / "killed" / "t.npz"), "--checkpoint", str(checkpoint)]
    attempts: list[dict[str, Any]] = []
    finished = False
    while not finished:
        last = len(attempts) >= arguments.kills
        limit_s = None if last else dice.uniform(0.6, 1.0) * whole_s
        process = subprocess.Popen(again)
        try:
            if process.wait(timeout=limit_s) != 0:
                sys.exit("the recording failed")
            finished = True
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        parts = len(list(checkpoint.glob("*.safetensors"))) if checkpoint.exists() else 0
        ended = "finished" if finished else "killed"
        attempts.append({"limit_s": limit_s and round(limit_s, 1), "ended": ended, "parts": parts})
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "command": f"python benchmarks/kill_recording.py {arguments.model.name} "
        f"{arguments.text.name} --kills {arguments.kills} --seed {arguments.seed}",
        "prompt_tokens": arguments.prompt_tokens,
        "undisturbed_s": round(whole_s, 1),
        "attempts": attempts,
        "sha256": {side: digests(folder / side) for side in ("whole", "killed")},
        "same_bytes": digests(folder / "whole") == digests(folder / "killed"),
        "checkpoint_removed": not checkpoint.exists(),
    }


def digests(folder: Path) -> list[str]:
    """Return the SHA-256 of each block size's file."""
    return [hashlib.sha256((folder / f"t-b{size}.npz").read_bytes()).hexdigest() for size in SIZES]


def commit() -> str:
    """Return the commit of the working tree."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
