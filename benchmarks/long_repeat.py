"""One text and case of ``quality_long.py`` again and again, with noise of the size of rounding.

    python benchmarks/long_repeat.py MODEL.gguf --results FOLDER/long.npz --text question --seed 12
        --case 10 --steps 40 --rows 16 --noise 0.0039 --out FILE [--kernels]

Rows of the same case side by side over the tokens that the CPU drew; each row's queries, keys and
values are multiplied by 1 + noise (-1/2 .. 1/2), element by element, before they are rounded to
bfloat16. With ``--kernels`` the kernels' arithmetic attends (``gpu_exec.model.host_kernels``), else
the reference.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import long_decode
import numpy as np
import torch
from quality_gpu import about

from gpu_exec.model.backend import PagedBackend
from gpu_exec.model.host_kernels import HostKernels
from oasis_sim.quality.backend import Reference
from oasis_sim.quality.rows import rounded_input
from oasis_sim.record import load_recorded_model
from oasis_sim.record.attention import LayerInput


def main() -> None:
    """Decode and write KL by row and step, beside that of the two runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--case", type=int, required=True)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--noise", type=float, default=2.0**-8)
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--commit", help="where the tree is no repository")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with np.load(arguments.results) as found:
        named = {
            run: {key: found[f"{run}-{arguments.text}-{arguments.seed}/{key}"] for key in
                  ("tokens", "drafts", "kl")}
            for run in ("cpu", "alone")
        }  # fmt: skip
    with torch.inference_mode():
        kl = repeat(arguments, named["cpu"])
    place, steps = arguments.case, kl.shape[1]
    written = {
        **about("cpu", arguments.commit),
        "attention": "arithmetic of the kernels" if arguments.kernels else "reference",
        "case": place,
        "noise": arguments.noise,
        "kl_cpu": np.round(named["cpu"]["kl"][place, :steps], 5).tolist(),
        "kl_alone": np.round(named["alone"]["kl"][place, :steps], 5).tolist(),
        "kl_by_row": np.round(kl, 5).tolist(),
    }
    arguments.out.write_text(json.dumps(written) + "\n", encoding="utf-8")
    print(kl[:, 1:].sum(axis=1).round(2), kl[:, -6:].mean(axis=1).round(3))


def repeat(arguments: argparse.Namespace, drawn: dict[str, Any]) -> Any:
    """Return KL of the rows, [R, S]."""
    model = load_recorded_model(arguments.model, threads=1)
    prompt = long_decode.LongPrompt(model, arguments.text, 4096, arguments.steps)
    tokens = tuple(drawn["tokens"][: arguments.steps + 1].tolist())
    path = prompt.path(arguments.seed, tokens=tokens)
    schemes = [long_decode.cases()[arguments.case]] * arguments.rows
    long_decode.cases = lambda: schemes
    inner: Any = Reference()
    if arguments.kernels:
        inner = PagedBackend("host", model.query_heads, HostKernels)
    plain, seen = inner.sparse, noisy(arguments.noise)

    def sparse(start: Any, plans: Any) -> Any:
        memory = plain(start, plans)
        memory.seen = seen
        return memory

    inner.sparse = sparse
    drafts = drawn["drafts"][: arguments.steps].tolist()
    return long_decode.decode_until(model, path, drafts, inner, time.time() + 1e6)["kl"]


def noisy(size: float) -> Callable[[LayerInput], LayerInput]:
    """Return what a layer sees: its input with noise, in 16 bits."""
    generator = torch.Generator().manual_seed(0)

    def seen(inputs: LayerInput) -> LayerInput:
        parts = {
            name: value * (1 + size * (torch.rand(value.shape, generator=generator) - 0.5))
            for name in ("query", "key", "value")
            if (value := getattr(inputs, name)) is not None
        }
        return rounded_input(replace(inputs, **parts))

    return seen


if __name__ == "__main__":
    main()
