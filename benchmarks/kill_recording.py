"""Kill a recording again and again, let it go on, and compare the bytes with an undisturbed one.

    python benchmarks/kill_recording.py MODEL TEXT --kills 6 --out validation/kill-recording.json

Each attempt runs the same command with the same checkpoint folder; all but the last are ended by
SIGKILL as soon as the folder holds a random number of parts. Two block sizes and two drafters are
recorded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import signal
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
    words += ["--block-size", ",".join(map(str, SIZES)), "--chunk-tokens", "64", "--force"]
    words += ["--max-perplexity", "1e9"]
    begun_s = time.monotonic()
    (folder / "whole").mkdir()
    subprocess.run([*words, "--out", str(folder / "whole" / "t.npz")], check=True)
    whole_s = time.monotonic() - begun_s
    checkpoint = folder / "checkpoint"
    (folder / "killed").mkdir()
    again = [*words, "--out", str(folder / "killed" / "t.npz"), "--checkpoint", str(checkpoint)]
    most = parts_of(arguments.prompt_tokens)
    ends = sorted(random.Random(arguments.seed).sample(range(1, most), arguments.kills))
    attempts = [attempt(again, checkpoint, parts) for parts in (*ends, None)]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "command": f"python benchmarks/kill_recording.py {arguments.model.name} "
        f"{arguments.text.name} --prompt-tokens {arguments.prompt_tokens} "
        f"--kills {arguments.kills} --seed {arguments.seed}",
        "prompt_tokens": arguments.prompt_tokens,
        "undisturbed_s": round(whole_s, 1),
        "attempts": attempts,
        "sha256": {side: digests(folder / side) for side in ("whole", "killed")},
        "same_bytes": digests(folder / "whole") == digests(folder / "killed"),
        "checkpoint_removed": not checkpoint.exists(),
    }


def parts_of(prompt_tokens: int) -> int:
    """Return the parts of a whole recording: chunks, 4 stretches of decoding, batches of rows."""
    return -(-prompt_tokens // 64) + 4 + 2 * len(SIZES)


def attempt(command: list[str], checkpoint: Path, kill_at: int | None) -> dict[str, Any]:
    """Run a command; kill it when the checkpoint holds some parts. Return how it ended."""
    begun_s = time.monotonic()
    process = subprocess.Popen(command)
    while process.poll() is None:
        parts = len(list(checkpoint.glob("*.safetensors")))
        if kill_at is not None and parts >= kill_at:
            process.send_signal(signal.SIGKILL)
            process.wait()
        time.sleep(0.002)
    killed = process.returncode == -signal.SIGKILL
    if not killed and process.returncode != 0:
        sys.exit("the recording failed")
    return {
        "kill_at_parts": kill_at,
        "ended": "killed" if killed else "finished",
        "parts_left": len(list(checkpoint.glob("*.safetensors"))),
        "seconds": round(time.monotonic() - begun_s, 1),
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
