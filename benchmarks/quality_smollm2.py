"""What caps cost SmolLM2-135M: three texts, two budgets, seven fetch ratios, two predictors.

    python benchmarks/quality_smollm2.py MODEL.gguf TEXT ... --out FOLDER [--steps 128]
        [--device cuda]

TEXT is prose, code or question: the texts of the shipped recordings, with their prompts, drawn with
their temperatures and seeds, for more steps. The working set is that of ``oasis-sim trace stats``:
one sink block and the two newest blocks are always resident and count in the budget. Some minutes
per text; ``--checkpoint FOLDER`` lets it go on after an interruption. The results are
``quality-smollm2-TEXT.json``, and with a GPU ``quality-smollm2-TEXT-gpu.json``, in the folder;
``benchmarks/quality_report.py`` reads them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from oasis_sim.quality import QualityOptions, QualityResult, measure_quality, vary_scheme
from oasis_sim.record import (
    ProgressLines,
    PromptRequest,
    RecordedModel,
    RecordOptions,
    build_prompt,
    load_recorded_model,
    load_text,
)
from oasis_sim.residency.stats import RECENT_BLOCKS, SINK_BLOCKS
from oasis_sim.scheme import Scheme, load_scheme, with_options

ROOT = Path(__file__).parents[1]
BUDGETS = (512, 1024)
RATIOS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 1.0)
PREDICTORS = ("draft", "previous")


@dataclass(frozen=True)
class Text:
    """Say how a text is read and continued."""

    file: str
    prompt_tokens: int | None
    question: str | None
    temperature: float
    seed: int


QUESTION = (
    "What does the crew do, step by step, if both generators stop? Use the words of the handbook."
)
TEXTS = {
    "prose": Text("prose.txt", 4096, None, 0.6, 1),
    "code": Text("library_code.txt", 4096, None, 0.8, 0),
    "question": Text("handbook.txt", None, QUESTION, 0.6, 1),
}


def working_set_scheme() -> Scheme:
    """Return ``oasis`` with the working set of ``oasis-sim trace stats``."""
    return with_options(
        load_scheme("oasis"),
        sink_blocks=SINK_BLOCKS,
        recent_blocks=RECENT_BLOCKS,
        recent_in_budget=True,
    )


def main() -> None:
    """Decode the texts and write the studies."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", nargs="+", choices=TEXTS)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kv-16bit", action="store_true", help="as a GPU keeps them")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--commit", help="where the tree is no repository")
    arguments = parser.parse_args()
    name = "SmolLM2-135M-Instruct"
    model = load_recorded_model(arguments.model, name=name, device=arguments.device)
    for text in arguments.texts:
        started = time.monotonic()
        result = study(model, TEXTS[text], arguments)
        named = f"{arguments.model.name} {text} --steps {arguments.steps}"
        found = {
            "command": f"python benchmarks/quality_smollm2.py {named} --device {arguments.device}"
            f"{' --kv-16bit' if arguments.kv_16bit else ''}",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": arguments.commit or commit(),
            "seconds": round(time.monotonic() - started, 1),
            "study": result.to_json(),
        }
        gpu = "" if arguments.device == "cpu" else "-gpu"
        place = arguments.out / f"quality-smollm2-{text}{gpu}.json"
        place.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def study(model: RecordedModel, text: Text, arguments: argparse.Namespace) -> QualityResult:
    """Decode one text."""
    source = load_text(ROOT / "traces" / "texts" / text.file, "CC0-1.0")
    request = PromptRequest(tokens=text.prompt_tokens, question=text.question)
    prompt = build_prompt(model.tokenizer, source, request, 0)
    decode = RecordOptions(
        steps=arguments.steps,
        trajectory="sample",
        temperature=text.temperature,
        seed=text.seed,
        ignore_eos=True,
        drafters=("skip",),
        draft_budget_tokens=BUDGETS[0],
    )
    scheme = working_set_scheme()
    schemes = vary_scheme(scheme, BUDGETS, RATIOS, PREDICTORS)
    backend = None
    if arguments.device != "cpu":
        from gpu_exec.model.backend import open_backend

        backend = open_backend(model)
        arguments.kv_16bit = True
    options = QualityOptions(decode, free_run=False, kv_16bit=arguments.kv_16bit)
    return measure_quality(
        model,
        prompt,
        schemes,
        options,
        ProgressLines(sys.stderr),
        checkpoint=arguments.checkpoint,
        backend=backend,
    )


def commit() -> str:
    """Return the commit of the working tree."""
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


if __name__ == "__main__":
    main()
