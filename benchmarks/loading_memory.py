"""What loading a model takes at most, beside its weights: GGUF files and safetensors folders.

    python benchmarks/loading_memory.py MODEL ... [--out validation/loading-memory.json]

Linux only. Each model is loaded by a process of its own. A GGUF file is measured twice: as it is,
and as a folder of safetensors in float32 that is written from it. Memory is resident; of a mapped
file it counts what was read. The vocabulary's tables of a GGUF file come and go before the weights.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from quality_smollm2 import commit
from recording_cost import memory_mib, weights_mib

MIB = 1 << 20


def main() -> None:
    """Measure each model and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--one", action="store_true", help="load here and print, for the processes")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(load(*arguments.models)))
        return
    rows = []
    for model in arguments.models:
        rows.append(apart(model))
        if model.is_file():
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder) / f"{model.stem}-folder"
                apart(model, place)
                rows.append(apart(place))
    names = " ".join(model.name for model in arguments.models)
    found = {
        "command": f"python benchmarks/loading_memory.py {names}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "rows": rows,
    }
    print(json.dumps(found, indent=2))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def apart(model: Path, folder: Path | None = None) -> dict[str, Any]:
    """Load a model in another process, and write it to a folder when one is named."""
    named = [str(model), *([str(folder)] if folder else [])]
    done = subprocess.run(
        [sys.executable, __file__, "--one", *named], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def load(model: Path, folder: Path | None = None) -> dict[str, Any]:
    """Load a model and return what it took."""
    import torch  # noqa: F401 - the libraries' own memory is told apart
    import transformers.modeling_gguf_pytorch_utils  # noqa: F401

    from oasis_sim.record import load_recorded_model

    before = memory_mib("VmRSS")
    loaded = load_recorded_model(model)
    files = [model] if model.is_file() else sorted(model.glob("*.safetensors"))
    found = {
        "model": model.name,
        "kind": "GGUF file" if model.is_file() else "safetensors folder",
        "file_mib": round(sum(file.stat().st_size for file in files) / MIB, 1),
        "weights_mib": weights_mib(loaded),
        "libraries_mib": before,
        "peak_mib": memory_mib("VmHWM"),
        "after_mib": memory_mib("VmRSS"),
    }
    if folder is not None:
        loaded.module.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)
    return found


if __name__ == "__main__":
    main()
