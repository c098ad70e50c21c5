"""``oasis-sim record``: the attention trace of a real model on given text."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oasis_sim.cli import model_options as shared
from oasis_sim.cli.once import OnceCommand
from oasis_sim.cli.options import options_checked
from oasis_sim.cli.path_type import PATH
from oasis_sim.cli.prompt_source import PromptSource, prompt_options
from oasis_sim.cli.record_report import recorded_command, report
from oasis_sim.errors import UsageError
from oasis_sim.fileio import check_writable, printable

if TYPE_CHECKING:
    from oasis_sim.record import RecordOptions
    from oasis_sim.trace import AttentionTrace

_SUFFIXES = (".npz", ".jsonl", ".jsonl.gz", ".jsonl.zst")


@dataclass(frozen=True)
class _Job:
    """Hold the options that name things: model, output."""

    model: Path
    model_name: str | None
    model_licence: str
    out: Path
    name: str | None
    dtype: str
    device: str
    threads: int
    checkpoint: Path | None
    quiet: bool


def _block_sizes(_context: click.Context, _option: click.Parameter, text: str) -> tuple[int, ...]:
    """Read block sizes such as ``16`` or ``16,32``."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) < 6 for word in words):
        raise click.BadParameter(f"{text[:40]!r} is no list of block sizes; write 16 or 16,32")
    sizes = tuple(map(int, words))
    if len(set(sizes)) != len(sizes):
        raise click.BadParameter(f"{text[:40]!r} names a size twice")
    return sizes


@click.command(cls=OnceCommand)
@click.argument("model", type=PATH)
@prompt_options
@click.option(
    "--out",
    required=True,
    type=PATH,
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
@click.option("--steps", type=int, default=64, show_default=True, help="Tokens to decode.")
@click.option(
    "--trajectory",
    default="greedy",
    show_default=True,
    help="Tokens after the prompt: greedy, sample (of the model) or text (its continuation).",
)
@shared.TEMPERATURE
@shared.SEED
@shared.IGNORE_EOS
@click.option(
    "--block-size",
    "block_sizes",
    default="16",
    show_default=True,
    callback=_block_sizes,
    help="Tokens per block; several, as in 16,32, give one trace each.",
)
@click.option("--stored-blocks", type=int, help="Blocks to keep per order.  [default: all]")
@click.option(
    "--layers",
    default="all",
    show_default=True,
    help="Layers to keep, as in 0,5,9 or 0-29:3; full leaves sliding windows out.",
)
@click.option("--mass/--no-mass", default=True, show_default=True, help="Store attention mass.")
@click.option(
    "--bound-join",
    default="max",
    show_default=True,
    help="Order by the query heads' max, mean, softmax-mean or min bound.",
)
@click.option(
    "--mass-join", default="mean", show_default=True, help="Mass of a group: mean or max."
)
@click.option(
    "--drafter",
    "drafters",
    multiple=True,
    default=("skip", "ngram"),
    show_default=True,
    help="skip (leaves out the middle eighth of the layers), skipA-B, ngram, oracle, "
    "model:FOLDER|FILE or eagle3:FOLDER; the first is the default of later commands; repeatable.",
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
@shared.CHUNK_TOKENS
@shared.MAX_PERPLEXITY
@shared.MODEL_NAME
@click.option(
    "--model-licence",
    default="not stated",
    show_default=True,
    help="Licence of the model, for the header.",
)
@shared.DTYPE
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N.")
@shared.THREADS
@click.option(
    "--checkpoint", type=PATH, help="Folder to keep finished parts in; the command goes on there."
)
@click.option(
    "--format",
    "output",
    type=click.Choice(["table", "json"]),
    default="table",
    help="What standard output carries.",
)
@click.option("--quiet", is_flag=True, help="Show no progress.")
def record(force: bool, output: str, block_sizes: tuple[int, ...], **options: Any) -> None:
    """Record the attention trace of MODEL on a text, a chat or token ids.

    MODEL is a local Hugging Face folder (safetensors) or a GGUF file of a decoder-only model with
    grouped-query or multi-head attention. Needs: pip install -e '.[record]' in a
    clone. Nothing is downloaded.
    """
    from oasis_sim.record import RecordOptions

    job = _Job(**{field: options.pop(field) for field in _Job.__dataclass_fields__})
    source = PromptSource.taken(options, options["trajectory"])
    places = {size: _place(job.out, size, len(block_sizes) > 1) for size in block_sizes}
    for place in places.values():
        check_place(place, force=force)
    with options_checked():
        wanted = RecordOptions(block_tokens=block_sizes[0], **options)
    traces = run_job(job, source, wanted, places, recorded_command(click.get_current_context()))
    click.echo(report(list(places.values()), traces, output))


def _place(out: Path, size: int, several: bool) -> Path:
    """Return the file of a block size: ``NAME-bSIZE`` when there are several."""
    stem = _stem(out)
    return out.with_name(f"{stem}-b{size}{out.name.removeprefix(stem)}") if several else out


def check_place(out: Path, *, force: bool) -> None:
    """Raise before the long work when the trace cannot be written where it should go."""
    shown = printable(out)
    if not out.name.endswith(_SUFFIXES):
        known = ", ".join(_SUFFIXES)
        raise UsageError(f"{shown}: unknown trace format; end the name in {known}")
    check_writable(out)
    if out.exists() and not force:
        raise UsageError(f"{shown}: exists; choose another name or add --force")


def run_job(
    job: _Job,
    source: PromptSource,
    options: RecordOptions,
    places: dict[int, Path],
    command: str,
) -> list[AttentionTrace]:
    """Load, record and write; return a trace per block size."""
    from oasis_sim import record as recording
    from oasis_sim.record.progress import no_progress
    from oasis_sim.trace import save_trace

    follow = options.steps + 1 if options.trajectory == "text" else 0
    found = source.read(follow)
    show = no_progress if job.quiet else recording.ProgressLines(sys.stderr)
    show("loading", 0, 1)
    model = recording.load_recorded_model(
        job.model,
        dtype=job.dtype,
        threads=job.threads,
        name=job.model_name,
        device=job.device,
        licence=job.model_licence,
    )
    show("loading", 1, 1)
    prompt = source.prompt(found, model, follow)
    names = {size: job.name or _stem(place) for size, place in places.items()}
    if job.name and len(places) > 1:
        names = {size: f"{job.name}-b{size}" for size in places}
    backend = None
    if job.device != "cpu":
        from gpu_exec.model.recording import open_recording

        backend = open_recording(model)
    results = recording.record_all(
        model,
        prompt,
        options,
        names=names,
        command=command,
        checkpoint=job.checkpoint,
        progress=show,
        backend=backend,
    )
    # Written together: no file stands in the way of a command that was interrupted between sizes.
    traces = [next(results).trace for _ in places]
    for place, trace in zip(places.values(), traces, strict=True):
        save_trace(trace, place)
    next(results, None)  # the checkpoint goes once the traces are written
    return traces


def _stem(path: Path) -> str:
    for suffix in sorted(_SUFFIXES, key=len, reverse=True):
        if path.name.endswith(suffix):
            return printable(path.name.removesuffix(suffix))
    return printable(path.name)
