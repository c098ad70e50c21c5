"""``oasis-sim record``: the attention trace of a real model on given text."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oasis_sim.errors import InputError, UsageError
from oasis_sim.fileio import printable

if TYPE_CHECKING:
    from oasis_sim.record import RecordOptions
    from oasis_sim.trace import AttentionTrace

_SUFFIXES = (".npz", ".jsonl", ".jsonl.gz", ".jsonl.zst")


@dataclass(frozen=True)
class _Job:
    """Hold the options that name things: model, text, output."""

    model: Path
    model_name: str | None
    text: Path
    text_name: str | None
    licence: str
    question: str | None
    prompt_tokens: int | None
    out: Path
    name: str | None
    dtype: str
    threads: int
    quiet: bool


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--text",
    required=True,
    type=click.Path(path_type=Path),
    help="UTF-8 text of the prompt (plain, .gz or .zst).",
)
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    help="Trace to write: .npz, .jsonl, .jsonl.gz or .jsonl.zst.",
)
@click.option("--force", is_flag=True, help="Replace an existing trace.")
@click.option("--name", help="Name of the trace.  [default: the file's name]")
@click.option("--text-name", help="Name of the text.  [default: the file's name]")
@click.option(
    "--licence",
    default="not stated",
    show_default=True,
    help="Licence of the text, for the header.",
)
@click.option("--question", help="Ask this about the text, in the model's chat form.")
@click.option(
    "--prompt-tokens", type=int, help="First tokens of the text to use.  [default: all of it]"
)
@click.option("--steps", type=int, default=64, show_default=True, help="Tokens to decode.")
@click.option(
    "--trajectory",
    default="greedy",
    show_default=True,
    help="Tokens after the prompt: greedy, sample (of the model) or text (its continuation).",
)
@click.option("--temperature", type=float, default=0.8, show_default=True, help="For sample.")
@click.option("--seed", type=int, default=0, show_default=True, help="For sample.")
@click.option("--ignore-eos", is_flag=True, help="Never let the model end its text.")
@click.option("--block-size", "block_tokens", type=int, default=16, show_default=True)
@click.option("--stored-blocks", type=int, help="Blocks to keep per order.  [default: all]")
@click.option(
    "--layers", default="all", show_default=True, help="Layers to keep, as in 0,5,9 or 0-29:3."
)
@click.option("--mass/--no-mass", default=True, show_default=True, help="Store attention mass.")
@click.option(
    "--drafter",
    "drafters",
    multiple=True,
    default=("skip", "ngram"),
    show_default=True,
    help="skip (leaves out the middle eighth of the layers), skipA-B or ngram; the first is the "
    "default of later commands; repeatable.",
)
@click.option(
    "--draft-budget",
    "draft_budget_tokens",
    type=int,
    default=2048,
    show_default=True,
    help="Tokens of predicted blocks that a draft row attends.",
)
@click.option("--sink-blocks", type=int, default=0, show_default=True, help="First blocks it adds.")
@click.option("--recent-blocks", type=int, default=1, show_default=True, help="Newest it adds.")
@click.option(
    "--chunk-tokens", type=int, default=256, show_default=True, help="Tokens per prefill chunk."
)
@click.option(
    "--max-perplexity",
    type=float,
    default=100.0,
    show_default=True,
    help="Refuse a model that reads the prompt worse than this.",
)
@click.option("--model-name", help="Name of the model.  [default: the file's or folder's name]")
@click.option("--dtype", default="float32", show_default=True, help="float32 or bfloat16.")
@click.option(
    "--threads", type=int, default=1, show_default=True, help="CPU threads; more is often slower."
)
@click.option("--format", "output", type=click.Choice(["table", "json"]), default="table")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def record(force: bool, output: str, **options: Any) -> None:
    """Record the attention trace of MODEL on a text.

    MODEL is a local Hugging Face folder (Llama, Mistral, Qwen2, Qwen3, SmolLM; safetensors) or a
    GGUF file. Needs: pip install 'oasis-sim[record]'. Nothing is downloaded.
    """
    from oasis_sim.record import RecordOptions

    job = _Job(**{field: options.pop(field) for field in _Job.__dataclass_fields__})
    check_place(job.out, force=force)
    trace = run_job(job, RecordOptions(**options))
    click.echo(_json(job, trace) if output == "json" else _table(job, trace))


def check_place(out: Path, *, force: bool) -> None:
    """Raise before the long work when the trace cannot be written where it should go."""
    shown = printable(out)
    if not out.name.endswith(_SUFFIXES):
        known = ", ".join(_SUFFIXES)
        raise UsageError(f"{shown}: unknown trace format; end the name in {known}")
    if out.is_dir() or not out.parent.is_dir():
        raise InputError("is no place for a file", file=shown, fix="name a file in a directory")
    if out.exists() and not force:
        raise UsageError(f"{shown}: exists; choose another name or add --force")


def run_job(job: _Job, options: RecordOptions) -> AttentionTrace:
    """Load, record and write; return the trace."""
    from oasis_sim import record as recording
    from oasis_sim.record.progress import no_progress
    from oasis_sim.trace import save_trace

    text = recording.load_text(job.text, job.licence, job.text_name)
    show = no_progress if job.quiet else recording.ProgressLines(sys.stderr)
    show("loading", 0, 1)
    model = recording.load_recorded_model(
        job.model, dtype=job.dtype, threads=job.threads, name=job.model_name
    )
    show("loading", 1, 1)
    request = recording.PromptRequest(tokens=job.prompt_tokens, question=job.question)
    follow = options.steps + 1 if options.trajectory == "text" else 0
    prompt = recording.build_prompt(model.tokenizer, text, request, follow)
    result = recording.record(
        model, prompt, options, name=job.name or _stem(job.out), progress=show
    )
    save_trace(result.trace, job.out)
    return result.trace


def _stem(path: Path) -> str:
    for suffix in sorted(_SUFFIXES, key=len, reverse=True):
        if path.name.endswith(suffix):
            return printable(path.name.removesuffix(suffix))
    return printable(path.name)


def _facts(job: _Job, trace: AttentionTrace) -> dict[str, Any]:
    return {
        "trace": trace.name,
        "file": printable(job.out),
        "file_bytes": job.out.stat().st_size,
        "model": trace.meta["model"]["name"],
        "prompt_tokens": int(trace.meta["prompt_tokens"]),
        "steps": trace.steps,
        "layers": trace.layers,
        "kv_heads": trace.kv_heads,
        "stored_blocks": trace.stored_blocks,
        "perplexity": float(trace.meta["text"]["perplexity"]),
        "accepted": {key: float(flags.mean()) for key, flags in trace.accepted.items()},
    }


def _json(job: _Job, trace: AttentionTrace) -> str:
    return json.dumps(_facts(job, trace), indent=2)


def _table(job: _Job, trace: AttentionTrace) -> str:
    facts = _facts(job, trace)
    accepted = facts.pop("accepted")
    rows = [(key.replace("_", " "), str(value)) for key, value in facts.items()]
    rows += [(f"{key} accepted", f"{share:.3f}") for key, share in accepted.items()]
    width = max(len(key) for key, _ in rows)
    return "\n".join(f"{key:<{width}}  {value}" for key, value in rows)
