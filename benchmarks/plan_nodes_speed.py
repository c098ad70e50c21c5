"""Time of plans for prefill and decode nodes, and a fingerprint of what they found.

    python benchmarks/plan_nodes_speed.py [--workers 1]

Qwen3-8B on H100s, up to 8 prefill and 16 decode nodes, random arrivals. Each plan runs in a process
of its own, after one that compiles. Of another checkout: PYTHONPATH=CHECKOUT in front.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time

START = "from oasis_sim.cli.main import entry_point; entry_point()"
COMMON = "--disaggregated 1..8:1..16 --context 16384 --output-tokens 512 --format json --quiet"
SLO = "--slo ttft_p95=2s,tpot_p99=30ms"
WARM = f"--rate 1 --requests 4 --tp 1 {SLO}"
PLANS = {
    "as in the documentation": f"--rate 4 {SLO}",
    "4,000 requests, tp 1": f"--rate 16 --requests 4000 --tp 1 {SLO}",
    "4,000 requests, every tp": f"--rate 16 --requests 4000 {SLO}",
}


def main() -> None:
    """Run all plans and print one JSON document."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--workers", type=int, default=1)
    workers = parser.parse_args().workers
    timed(WARM, workers)
    runs = [{"plan": name, **timed(options, workers)} for name, options in PLANS.items()]
    sys.stdout.write(json.dumps({"workers": workers, "runs": runs}, indent=1) + "\n")


def timed(options: str, workers: int) -> dict[str, object]:
    """Run a plan; return its command and times, simulations by fleet, SHA-256 of what it found."""
    words = ["plan", *options.split(), *COMMON.split(), "--workers", str(workers)]
    started, before = time.monotonic(), os.times()
    done = subprocess.run(
        [sys.executable, "-c", START, *words], stdout=subprocess.PIPE, check=False
    )
    if done.returncode not in (0, 4):
        raise SystemExit(done.returncode)
    wall, after = time.monotonic() - started, os.times()
    used = after.children_user + after.children_system
    fleets = json.loads(done.stdout)["fleets"]
    found = [{name: each[name] for name in each if name != "simulations"} for each in fleets]
    return {
        "command": " ".join(["oasis-sim", *words]),
        "wall_s": round(wall, 1),
        "cpu_s": round(used - before.children_user - before.children_system, 1),
        "fleets": {
            f"{each['scheme']} tp {each['tp']}": f"{each['prefill_nodes']}:{each['decode_nodes']}"
            for each in fleets
        },
        "simulations": [each["simulations"] for each in fleets],
        "sha256_of_fleets": hashlib.sha256(json.dumps(found).encode()).hexdigest(),
    }


if __name__ == "__main__":
    main()
