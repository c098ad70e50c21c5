"""`oasis-sim quality`: what a scheme costs, by decoding a real model with it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oasis_sim.cli import model_options as shared
from oasis_sim.cli.lists import listed, read_budget, read_cap, read_ratio, scheme_list
from oasis_sim.cli.once import OnceCommand
from oasis_sim.cli.options import PREDICTORS, options_checked, output_options
from oasis_sim.cli.path_type import PATH
from oasis_sim.cli.prompt_source import PromptSource, prompt_options
from oasis_sim.cli.terminal import note
from oasis_sim.errors import UsageError

if TYPE_CHECKING:
    from oasis_sim.quality import QualityOptions, QualityResult
    from oasis_sim.scheme import Scheme

DETAILS = ("schemes", "layers", "stretches")


@dataclass(frozen=True)
class _Job:
    """Hold the options that name things: model, scheme, output."""

    model: Path
    model_name: str | None
    scheme: str
    fetch_ratio: Sequence[float]
    budget: Sequence[int]
    predictor: Sequence[str]
    pool: float | None
    dtype: str
    device: str
    threads: int
    checkpoint: Path | None
    quiet: bool


@click.command(cls=OnceCommand)
@click.argument("model", type=PATH)
@prompt_options
@click.option("--steps", type=int, default=48, show_default=True, help="Tokens to decode.")
@click.option(
    "--scheme",
    metavar="NAME|FILE,...",
    default="oasis",
    show_default=True,
    help="KV cache scheme; several are decoded along the same text, each in its own units.",
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
    type=PATH,
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
    type=PATH,
    help="Draw KL against fetch ratio and bytes per step: .svg, .png or .pdf.",
)
@click.option("--force", is_flag=True, help="Replace an existing plot.")
@output_options
def quality(
    detail: str, plot: Path | None, force: bool, output_format: str, free_run: bool, **options: Any
) -> None:
    """Decode MODEL with only the resident blocks attended, and compare with full attention.

    MODEL is a local Hugging Face folder (safetensors) or a GGUF file of a decoder-only model with
    grouped-query or multi-head attention, as in record. Needs: pip install -e
    '.[record]' in a clone. Nothing is downloaded.
    """
    from oasis_sim.quality.options import check_caps
    from oasis_sim.quality.plot import draw_plot
    from oasis_sim.quality.present import write_result
    from oasis_sim.report.plotfile import check_plot

    if plot is not None:
        check_plot(plot, force=force)
    job = _Job(**{field: options.pop(field) for field in _Job.__dataclass_fields__})
    source = PromptSource.taken(options, options["trajectory"])
    schemes = _schemes(job, options.pop("block_tokens"))
    for text in dict.fromkeys(text for scheme in schemes for text in scheme.cautions):
        note(text, job.quiet)
    with options_checked():
        wanted = _options(schemes, free_run, options)
    check_caps(schemes, wanted)
    result = run_job(job, source, schemes, wanted)
    if plot is not None:
        draw_plot(result, plot)
    write_result(result, output_format, detail, sys.stdout)


def _schemes(job: _Job, block_tokens: int | None) -> tuple[Scheme, ...]:
    """Return what is decoded: each scheme with each budget, predictor and ratio that it can have.

    One scheme alone must take every option; of several, those that cannot are told and decoded
    without it.
    """
    from oasis_sim.quality import applicable, own_units, vary_scheme
    from oasis_sim.scheme import load_scheme

    names = scheme_list(job.scheme)
    found: list[Scheme] = []
    for scheme in [load_scheme(name) for name in names]:
        if scheme.name in {each.name for each in found}:
            raise UsageError(f"--scheme names {scheme.name} twice")
        ratios, predictors = job.fetch_ratio, job.predictor
        if len(names) > 1:
            ratios, predictors = applicable(scheme, ratios, predictors)
            for option, given, used in (
                ("--fetch-ratio", job.fetch_ratio, ratios),
                ("--predictor", job.predictor, predictors),
            ):
                left = [str(value) for value in given if value not in used]
                if left:
                    note(f"{scheme.name}: {option} {','.join(left)} does not apply", job.quiet)
        base = _changed(own_units(scheme), job, block_tokens)
        found += vary_scheme(base, job.budget, ratios, predictors)
    return tuple(found)


def _changed(base: Scheme, job: _Job, block_tokens: int | None) -> Scheme:
    """Return a scheme with the block size and the pool that are given."""
    from oasis_sim.scheme import with_options

    if block_tokens is not None and base.selects:
        # The first budget along with the block: the scheme's own may be no multiple of it.
        first = job.budget[0] if job.budget else None
        base = with_options(base, block_tokens=block_tokens, budget_tokens=first)
    if job.pool is not None:
        base = with_options(base, pool_factor=job.pool)
    return base


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


def run_job(
    job: _Job, source: PromptSource, schemes: Sequence[Scheme], options: QualityOptions
) -> QualityResult:
    """Load, prefill and decode."""
    from oasis_sim import record as recording
    from oasis_sim.quality import measure_quality
    from oasis_sim.record.progress import no_progress

    follow = options.decode.steps + 1 if options.decode.trajectory == "text" else 0
    found = source.read(follow)
    show = no_progress if job.quiet else recording.ProgressLines(sys.stderr)
    model = recording.load_recorded_model(
        job.model,
        dtype=job.dtype,
        threads=job.threads,
        name=job.model_name,
        device=job.device,
    )
    prompt = source.prompt(found, model, follow)
    whole = len(prompt.tokens) + options.decode.steps
    for budget in sorted({scheme.budget_tokens for scheme in schemes}):
        if budget >= whole:
            said = f"a budget of {budget:,} tokens holds all {whole:,} of the text"
            fix = "use a smaller --budget or a longer prompt"
            note(f"{said}: nothing is left out; {fix}", job.quiet)
    backend = None
    if job.device != "cpu":
        from gpu_exec.model.backend import open_backend

        backend, options = open_backend(model), replace(options, kv_16bit=True)
    return measure_quality(
        model, prompt, schemes, options, show, checkpoint=job.checkpoint, backend=backend
    )
