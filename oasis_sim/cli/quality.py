"""`oasis-sim quality`: what a scheme costs, by decoding a real model with it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oasis_sim.cli import model_options as shared
from oasis_sim.cli.once import OnceCommand
from oasis_sim.cli.options import MOST_TOKENS, PREDICTORS, options_checked, output_options
from oasis_sim.cli.terminal import note
from oasis_sim.errors import UsageError

if TYPE_CHECKING:
    from oasis_sim.quality import QualityOptions, QualityResult
    from oasis_sim.scheme import Scheme

Number = TypeVar("Number", int, float)

ALL = "all"
MOST_DIGITS = 20
DETAILS = ("schemes", "layers", "stretches")


def listed(read: Callable[[str], Number]) -> Callable[..., tuple[Number, ...]]:
    """Return a callback that reads a list with commas, item by item, or fails as usage."""

    def convert(
        ctx: click.Context, param: click.Parameter, value: str | None
    ) -> tuple[Number, ...]:
        items = [] if value is None else [item.strip() for item in value.split(",")]
        try:
            return tuple(read(item) for item in items)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from None

    return convert


def read_ratio(text: str) -> float:
    """Read a fetch ratio, 0 to 1 or ``all``."""
    try:
        ratio = 1.0 if text == ALL else float(text)
    except ValueError:
        ratio = -1.0
    if not 0.0 <= ratio <= 1.0:
        raise ValueError(f"{text[:40]!r} is no fetch ratio; use 0 to 1 or {ALL}")
    return ratio


def read_budget(text: str) -> int:
    """Read a number of tokens."""
    if not 1 <= (tokens := _whole(text)) <= MOST_TOKENS:
        raise ValueError(f"{text[:40]!r} is no number of tokens; use 1 to {MOST_TOKENS}")
    return tokens


def read_cap(text: str) -> int:
    """Read a number of blocks."""
    if not 0 <= (blocks := _whole(text)) <= MOST_TOKENS:
        raise ValueError(f"{text[:40]!r} is no number of blocks; use 0 to {MOST_TOKENS}")
    return blocks


def _whole(text: str) -> int:
    """Read digits of a reasonable number; -1 for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else -1


@dataclass(frozen=True)
class _Job:
    """Hold the options that name things: model, text, scheme, output."""

    model: Path
    model_name: str | None
    text: Path
    question: str | None
    prompt_tokens: int | None
    scheme: str
    fetch_ratio: tuple[float, ...]
    budget: tuple[int, ...]
    predictor: tuple[str, ...]
    pool: float | None
    dtype: str
    device: str
    threads: int
    checkpoint: Path | None
    quiet: bool


@click.command(cls=OnceCommand)
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--text", required=True, type=click.Path(path_type=Path), help="UTF-8 text of the prompt."
)
@shared.QUESTION
@shared.PROMPT_TOKENS
@click.option("--steps", type=int, default=48, show_default=True, help="Tokens to decode.")
@click.option(
    "--scheme", metavar="NAME|FILE", default="oasis", show_default=True, help="KV cache scheme."
)
@click.option(
    "--fetch-ratio",
    callback=listed(read_ratio),
    metavar="R,R,...",
    help="Shares of the budget fetched per step, or all.  [default: the scheme's]",
)
@click.option(
    "--budget",
    callback=listed(read_budget),
    metavar="K,K,...",
    help="Tokens attended per KV head.  [default: the scheme's]",
)
@click.option(
    "--predictor",
    multiple=True,
    type=click.Choice(PREDICTORS),
    help="Who selects blocks; repeatable.  [default: the scheme's]",
)
@click.option("--pool", type=float, help="Resident slots, as a multiple of the budget.")
@click.option("--block-size", "block_tokens", type=int, help="Tokens per block.")
@click.option(
    "--drafter",
    default="skip",
    show_default=True,
    help="skip, skipA-B, ngram, oracle, model:PATH or eagle3:FOLDER, as in record.",
)
@click.option(
    "--bound-join",
    default="max",
    show_default=True,
    help="Score of a block by a group's heads: max, mean, min or softmax-mean.",
)
@click.option(
    "--trajectory",
    default="sample",
    show_default=True,
    help="Tokens decoded: greedy, sample (of full attention) or text (its continuation).",
)
@shared.TEMPERATURE
@shared.SEED
@shared.IGNORE_EOS
@click.option(
    "--free-run/--no-free-run",
    default=True,
    show_default=True,
    help="Let each scheme write a text of its own, too.",
)
@shared.CHUNK_TOKENS
@shared.MAX_PERPLEXITY
@shared.MODEL_NAME
@shared.DTYPE
@click.option(
    "--index-fp8", is_flag=True, help="Keep extreme keys in e4m3, rounded outwards, as gpu_exec."
)
@click.option(
    "--step-caps",
    callback=listed(read_cap),
    metavar="C,C,...",
    help="Blocks per head of an adaptive cap, by step, in turn.",
)
@click.option("--kv-16bit", is_flag=True, help="Round queries, keys and values to bfloat16.")
@click.option(
    "--device",
    default="cpu",
    show_default=True,
    help="cpu, cuda or cuda:N; a GPU attends, scans, selects and gathers by the project's kernels.",
)
@shared.THREADS
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    help="Folder to keep finished parts in; the command goes on there.",
)
@click.option(
    "--detail",
    type=click.Choice(DETAILS),
    default="schemes",
    show_default=True,
    help="Rows of table and CSV; JSON holds all.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    help="Draw KL against fetch ratio and bytes per step: .svg, .png or .pdf.",
)
@click.option("--force", is_flag=True, help="Replace an existing plot.")
@output_options
def quality(
    detail: str, plot: Path | None, force: bool, output_format: str, free_run: bool, **options: Any
) -> None:
    """Decode MODEL with only the resident blocks attended, and compare with full attention.

    MODEL is a local Hugging Face folder (safetensors) or a GGUF file of a decoder-only model with
    grouped-query or multi-head attention, as in record. Needs: pip install
    'oasis-sim[record]'. Nothing is downloaded.
    """
    from oasis_sim.quality.options import check_caps
    from oasis_sim.quality.plot import draw_plot
    from oasis_sim.quality.present import write_result
    from oasis_sim.report.plotfile import check_plot

    if plot is not None:
        check_plot(plot, force=force)
    job = _Job(**{field: options.pop(field) for field in _Job.__dataclass_fields__})
    schemes = _schemes(job, options.pop("block_tokens"))
    for text in dict.fromkeys(text for scheme in schemes for text in scheme.cautions):
        note(text, job.quiet)
    with options_checked():
        wanted = _options(schemes, free_run, options)
    check_caps(schemes, wanted)
    if wanted.decode.trajectory == "text" and job.question is not None:
        raise UsageError("--trajectory text and --question contradict each other")
    result = run_job(job, schemes, wanted)
    if plot is not None:
        draw_plot(result, plot)
    write_result(result, output_format, detail, sys.stdout)


def _schemes(job: _Job, block_tokens: int | None) -> tuple[Scheme, ...]:
    from oasis_sim.quality import own_units, vary_scheme
    from oasis_sim.scheme import load_scheme, with_options

    base = own_units(load_scheme(job.scheme))
    budgets: Sequence[int] = job.budget
    if block_tokens is not None and base.selects:
        # The first budget along with the block: the scheme's own may be no multiple of it.
        first = budgets[0] if budgets else None
        base = with_options(base, block_tokens=block_tokens, budget_tokens=first)
    if job.pool is not None:
        base = with_options(base, pool_factor=job.pool)
    return vary_scheme(base, budgets, job.fetch_ratio, job.predictor)


def _options(schemes: Sequence[Scheme], free_run: bool, options: dict[str, Any]) -> QualityOptions:
    from oasis_sim.quality import QualityOptions
    from oasis_sim.record import RecordOptions

    drafter = options.pop("drafter")
    own = {name: options.pop(name) for name in ("kv_16bit", "index_fp8", "step_caps")}
    decode = RecordOptions(
        block_tokens=schemes[0].block_tokens,
        draft_budget_tokens=schemes[0].block_tokens,
        drafters=(drafter,),
        **options,
    )
    return QualityOptions(decode, free_run=free_run, **own)


def run_job(job: _Job, schemes: Sequence[Scheme], options: QualityOptions) -> QualityResult:
    """Load, prefill and decode."""
    from oasis_sim import record as recording
    from oasis_sim.quality import measure_quality
    from oasis_sim.record.progress import no_progress

    text = recording.load_text(job.text, "not stated")
    show = no_progress if job.quiet else recording.ProgressLines(sys.stderr)
    model = recording.load_recorded_model(
        job.model,
        dtype=job.dtype,
        threads=job.threads,
        name=job.model_name,
        device=job.device,
    )
    request = recording.PromptRequest(tokens=job.prompt_tokens, question=job.question)
    follow = options.decode.steps + 1 if options.decode.trajectory == "text" else 0
    prompt = recording.build_prompt(model.tokenizer, text, request, follow)
    backend = None
    if job.device != "cpu":
        from gpu_exec.model.backend import open_backend

        backend, options = open_backend(model), replace(options, kv_16bit=True)
    return measure_quality(
        model, prompt, schemes, options, show, checkpoint=job.checkpoint, backend=backend
    )
