"""Options that several commands share, and how they become a scenario."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oasis_sim.cli.load_options import WORKLOAD_FORMATS, concurrency_from, load_from
from oasis_sim.errors import InputError, UsageError

if TYPE_CHECKING:
    from oasis_sim.engine.spec import ScenarioSpec
    from oasis_sim.scheme import Scheme

Command = TypeVar("Command", bound=Callable[..., Any])

PREDICTORS = ("draft", "previous", "current", "oracle")
FORMATS = ("table", "json", "csv")
MACHINE_OPTIONS = (
    "profile",
    "engine",
    "model",
    "tp",
    "host_bytes",
    "hbm_bytes",
    "host_link",
    "seed",
)
MOST_TOKENS = 2**31 - 1
MOST_REQUESTS = 10_000_000
MOST_RATE = 1_000_000_000

SCHEME_PARTS = {
    "fetch_ratio": "fetch_ratio",
    "cap_blocks": "cap_blocks",
    "budget": "budget_tokens",
    "pool": "pool_factor",
    "block_size": "block_tokens",
    "cap_over": "cap_over",
    "evict": "evict",
    "admit": "admit",
}
LOAD_OPTIONS = (
    "workload",
    "workload_format",
    "every",
    "rate",
    "requests",
    "context",
    "output_tokens",
)


class FiniteNumber(click.FloatRange):
    """Accept a finite number within a range (NaN passes click's own comparison)."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number or fail as usage."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


def size_in_bytes(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Read a size with its unit, such as `400 GiB`, or fail as usage."""
    from oasis_sim.units import parse_bytes

    try:
        return None if value is None else parse_bytes(value)
    except InputError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def rate_in_bytes(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Read a bandwidth with its unit, such as `400 Gbit/s`, or fail as usage."""
    from oasis_sim.units import parse_bandwidth

    try:
        return None if value is None else parse_bandwidth(value)
    except InputError as error:
        raise click.BadParameter(str(error), ctx, param) from None


@contextmanager
def options_checked() -> Iterator[None]:
    """Make a wrong value of an option, found where options are put together, a usage error."""
    try:
        yield
    except InputError as error:
        if error.file is not None:
            raise
        raise UsageError(str(error)) from None


TOKENS = click.IntRange(1, MOST_TOKENS)

SCHEME_OPTION = click.option(
    "--scheme",
    metavar="NAME|FILE",
    help="KV cache scheme; several with commas run side by side.  [default: oasis]",
)

SCENARIO_OPTIONS = (
    click.option("--profile", metavar="NAME|FILE", help="Hardware profile.  [default: h100]"),
    click.option(
        "--trace",
        metavar="NAME|FILE",
        multiple=True,
        help="Attention trace; repeat for several.  [default: aime.jsonl]",
    ),
    click.option(
        "--model", metavar="NAME|FILE", help="Model or its config.json.  [default: qwen3-8b]"
    ),
    SCHEME_OPTION,
    click.option(
        "--engine",
        metavar="NAME",
        help="Engine cost model, one of the profile's (see 'profiles').  [default: vllm]",
    ),
    click.option(
        "--fetch-ratio",
        type=FiniteNumber(0, 1),
        help="Blocks fetched per head, layer and step, as a share of the budget; 1 means all.",
    ),
    click.option("--cap-blocks", type=click.IntRange(0), help="The same as a number of blocks."),
    click.option("--budget", type=TOKENS, help="Tokens attended per head (K)."),
    click.option(
        "--pool", type=FiniteNumber(1, 1024), help="Resident slots, as a multiple of the budget."
    ),
    click.option("--block-size", type=click.IntRange(1, 4096), help="Tokens per block."),
    click.option(
        "--cap-over", metavar="WHAT", help="Who shares the cap: head (nobody), layer or model."
    ),
    click.option(
        "--evict",
        metavar="RULE",
        help="Who leaves: least_recently_selected, least_attended or belady.",
    ),
    click.option(
        "--admit",
        metavar="RULE",
        help="Which misses are fetched: all or gainful (with --evict least_attended).",
    ),
    click.option(
        "--predictor",
        metavar="NAME",
        help=f"Who selects blocks: {', '.join(PREDICTORS)}, or a drafter of the trace.",
    ),
    click.option("--context", type=TOKENS, help="Prompt tokens.  [default: 16384]"),
    click.option("--output-tokens", type=TOKENS, help="Tokens generated.  [default: 2048]"),
    click.option(
        "--concurrency",
        type=click.IntRange(1, MOST_REQUESTS),
        help="Most requests in the system at once.  [default: 128; none with arrivals]",
    ),
    click.option(
        "--requests",
        type=click.IntRange(1, MOST_REQUESTS),
        help="Number of requests.  [default: twice the concurrency, or the whole file]",
    ),
    click.option(
        "--rate",
        type=FiniteNumber(0, MOST_RATE, min_open=True),
        help="Random arrivals per second (Poisson).",
    ),
    click.option("--workload", metavar="FILE", help="Request file; name its format too."),
    click.option(
        "--workload-format", type=click.Choice(WORKLOAD_FORMATS), help="Format of that file."
    ),
    click.option(
        "--every",
        type=click.IntRange(1, MOST_REQUESTS),
        help="Every n-th request of that file: what one of n replicas sees.",
    ),
    click.option("--tp", type=click.IntRange(1, 1024), help="GPUs per model.  [default: 1]"),
    click.option(
        "--host-memory",
        "host_bytes",
        callback=size_in_bytes,
        metavar="SIZE",
        help="Host memory for KV per GPU, such as '400 GiB'.  [default: the profile's]",
    ),
    click.option(
        "--hbm-memory",
        "hbm_bytes",
        callback=size_in_bytes,
        metavar="SIZE",
        help="Memory of one GPU as measured, such as '79 GiB'.  [default: the profile's]",
    ),
    click.option(
        "--pcie",
        "host_link",
        metavar="4|5|6|RATE",
        help="Link to host memory: PCIe x16 of a generation, or the measured rate of a large "
        "copy, such as '52 GB/s'.  [default: the profile's]",
    ),
    click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Seed.  [default: 0]"),
    click.option(
        "--steps", type=click.IntRange(1, MOST_TOKENS), help="Stop after this many steps."
    ),
)


def scenario_options(command: Command) -> Command:
    """Add the options that describe a scenario."""
    for option in reversed(SCENARIO_OPTIONS):
        command = option(command)
    return command


def scenario_options_but_scheme(command: Command) -> Command:
    """Add the options that describe a scenario, where the command names its schemes itself."""
    for option in reversed(SCENARIO_OPTIONS):
        if option is not SCHEME_OPTION:
            command = option(command)
    return command


def output_options(command: Command) -> Command:
    """Add `--format` and `--quiet`."""
    command = click.option("--quiet", is_flag=True, help="No progress and notes.")(command)
    return format_option(command)


def network_option(default: str | None) -> Callable[[Command], Command]:
    """Make `--network`."""
    return click.option(
        "--network",
        metavar="NAME|FILE",
        default=default,
        show_default=default is not None,
        help="Network between nodes, one of 'networks'.",
    )


def format_option(command: Command) -> Command:
    """Add `--format`."""
    return click.option(
        "--format",
        "output_format",
        type=click.Choice(FORMATS),
        default="table",
        show_default=True,
        help="What standard output carries.",
    )(command)


def spec_from(values: Mapping[str, Any], base: ScenarioSpec | None = None) -> ScenarioSpec:
    """Return the scenario that options describe, on top of `base` (the default scenario)."""
    from oasis_sim.engine.spec import ScenarioSpec

    start = base or ScenarioSpec()
    scheme, drafter = _scheme_from(values, start)
    load = load_from(values, start)
    concurrency = concurrency_from(values, start, load)
    if base is None and load.kind == "closed_loop" and values["requests"] is None and concurrency:
        load = replace(load, requests=2 * concurrency)
    names = {key: values[key] for key in MACHINE_OPTIONS if values[key] is not None}
    return replace(
        start,
        **names,
        traces=values["trace"] or start.traces,
        scheme=scheme,
        drafter=drafter,
        load=load,
        concurrency=concurrency,
        max_steps=start.max_steps if values["steps"] is None else values["steps"],
    )


def overridden_inputs(values: Mapping[str, Any]) -> set[str]:
    """Return the kinds of input that options replace: they need not be as in a config file."""
    replaced = {name for name in ("profile", "model", "trace", "network") if values[name]}
    if values["hbm_bytes"] is not None or values["host_link"] is not None:
        replaced.add("profile")
    if any(values[name] is not None for name in (*LOAD_OPTIONS, "seed")):
        replaced.add("workload")
    return replaced


def _scheme_from(values: Mapping[str, Any], base: ScenarioSpec) -> tuple[Scheme, str | None]:
    from oasis_sim.scheme import load_scheme, with_options

    scheme = base.scheme if values["scheme"] is None else load_scheme(values["scheme"])
    parts = {part: values[option] for option, part in SCHEME_PARTS.items()}
    predictor, drafter = values["predictor"], base.drafter
    if predictor is not None:
        drafter = None if predictor in PREDICTORS else predictor
        parts["predictor"] = "draft" if drafter else predictor
    return with_options(scheme, **parts), drafter
