"""Attention by how many CTAs share a pair and how deep their rings are, over batch and budget.

    python benchmarks/gpu/attention_splits.py OUT.json

Qwen3-8B, blocks of 16, layers rotate. Rows: us of one layer's attention, TB/s of the KV that it
reads, and whether a step picks this form.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.common import graph_ms, write_rows
from benchmarks.gpu.kernels import LAYERS, setup
from gpu_exec.kernels import library

BATCHES = {
    2048: (4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 56, 64, 68, 72, 76, 80, 84, 88, 96, 112),
    1024: (8, 16, 24, 32, 48, 72, 88),
    4096: (8, 16, 24, 32, 48, 72, 88),
}
"""Requests by budget in tokens."""
FEW, MORE = 36, 96
"""Requests up to which four CTAs share a pair, and two."""


def forms(batch: int) -> list[tuple[int, int]]:
    """Return (splits, ring stages) worth a look."""
    splits = (1, 2, 3, 4) if batch <= FEW else (1, 2) if batch <= MORE else (1,)
    return [(s, stages) for s in splits for stages in (2, 3)]


def main() -> None:
    """Time every form."""
    rows: list[dict[str, Any]] = []
    for budget, batches in BATCHES.items():
        blocks = budget // 16
        for batch in batches:
            config, _memory, arguments = setup(
                batch, 8192, chosen_blocks=blocks, pool_blocks=blocks, host_bytes=1 << 26
            )
            tokens = budget + config.block_tokens // 2
            picked = arguments.attention_splits, arguments.attention_stages
            for splits, stages in forms(batch):
                args = [arguments.attention(layer, 0) for layer in range(LAYERS)]
                for each in args:
                    each.splits, each.stages = splits, stages

                def run(args: list[Any] = args, pairs: int = config.pairs) -> None:
                    for each in args:
                        library.launch("oasis_attention", each, pairs, 0, 0)

                ms = graph_ms(run) / LAYERS
                row = {
                    "budget": budget,
                    "batch": batch,
                    "splits": splits,
                    "stages": stages,
                    "us": round(1e3 * ms, 2),
                    "tb_per_s": round(config.pairs * tokens * 512 / ms * 1e-9, 3),
                    "picked": (splits, stages) == picked,
                }
                rows.append(row)
            print(min(rows[-len(forms(batch)) :], key=lambda r: r["us"]), flush=True)
    write_rows(sys.argv[1], rows)


if __name__ == "__main__":
    main()
