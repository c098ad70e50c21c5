"""Options of runs on several nodes, and how they become a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from oasis_sim.cli.options import Command, FiniteNumber, size_in_bytes
from oasis_sim.errors import UsageError
from oasis_sim.text import plain

if TYPE_CHECKING:
    from oasis_sim.engine.spec import DisaggregationSpec
    from oasis_sim.scheme import Scheme

MOST_NODES = 4_096
MOST_AT_ONCE = 1_000_000

DISAGGREGATION_OPTIONS = (
    click.option(
        "--disaggregated",
        metavar="P:D",
        help="Prefill and decode on P and D nodes of their own, each with --tp GPUs.",
    ),
    click.option(
        "--network",
        metavar="NAME|FILE",
        help="Network between those nodes, one of 'networks'.  [default: roce-400]",
    ),
    click.option(
        "--transfer",
        type=click.Choice(("full", "partial")),
        help="What a decode node receives: all KV of a prompt, or what an extra decode step "
        "selects, and the rest when it is needed.  [default: partial if the scheme looks a step "
        "ahead]",
    ),
    click.option(
        "--prefix-hits",
        type=FiniteNumber(0, 1),
        help="Share of every prompt that prefill need not compute.  [default: 0]",
    ),
    click.option(
        "--remote-memory",
        "remote_bytes",
        callback=size_in_bytes,
        metavar="SIZE",
        help="Host memory of a prefill node that keeps KV for others.  [default: the network's]",
    ),
    click.option(
        "--transfers-at-once",
        "at_once",
        type=click.IntRange(1, MOST_AT_ONCE),
        help="Most hand-overs under way to one decode node; others wait for their turn.  "
        "[default: no bound]",
    ),
    click.option(
        "--fault",
        "faults",
        metavar="KIND:PARTS",
        multiple=True,
        help="What breaks, such as link:node=decode0,at=60s,for=30s,share=0.1 or "
        "prefill:node=0,at=100s; repeat for several (docs/disaggregation.md).",
    ),
)
OPTION_NAMES = {
    "remote_bytes": "remote-memory",
    "at_once": "transfers-at-once",
    "faults": "fault",
}
WORKERS_OPTION = click.option(
    "--workers",
    type=click.IntRange(1, 1024),
    help="Processes that decode nodes of a disaggregated run may use; results do not depend on "
    "it.  [default: 1, for large runs all cores]",
)
DISAGGREGATION_PARTS = ("network", "transfer", "prefix_hits", "remote_bytes", "at_once", "faults")


def disaggregation_options(command: Command) -> Command:
    """Add the options of runs on several nodes."""
    for option in reversed((*DISAGGREGATION_OPTIONS, WORKERS_OPTION)):
        command = option(command)
    return command


def disaggregation_options_but_workers(command: Command) -> Command:
    """Add those options where the processes are the command's own."""
    for option in reversed(DISAGGREGATION_OPTIONS):
        command = option(command)
    return command


def disaggregation_from(
    values: Mapping[str, Any], base: DisaggregationSpec | None, scheme: Scheme
) -> DisaggregationSpec | None:
    """Return the nodes that options describe, on top of `base`; None for a run on one node.

    Raises UsageError for options that need `--disaggregated`.
    """
    from oasis_sim.cluster.plan import default_transfer
    from oasis_sim.engine.spec import DEFAULT_NETWORK, DisaggregationSpec

    given = {name: values[name] for name in DISAGGREGATION_PARTS if values[name] not in (None, ())}
    if values["disaggregated"] is None and base is None:
        if values.get("workers") is not None:
            given["workers"] = values["workers"]
        if given:
            name = OPTION_NAMES.get(first := next(iter(given)), first)
            raise UsageError(f"--{name.replace('_', '-')} needs --disaggregated P:D")
        return None
    start = base or DisaggregationSpec(1, 1, DEFAULT_NETWORK, default_transfer(scheme))
    if values["disaggregated"] is not None:
        prefill, decode = node_counts(values["disaggregated"])
        start = replace(start, prefill=prefill, decode=decode)
    return replace(start, **given)


def node_counts(text: str) -> tuple[int, int]:
    """Read `P:D`; raise UsageError for anything else."""
    counts = _counts(text)
    if counts is None:
        raise UsageError(
            f"--disaggregated {plain(text)!r} is not P:D; give prefill and decode nodes, each from "
            f"1 to {MOST_NODES:,}, such as 1:1 or 16:64"
        )
    return counts


def node_bounds(text: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Read `P:D`, each a number or LOW..HIGH, as ends of both; raise UsageError for others."""
    ends = [part.partition("..") for part in text.split(":")]
    lows = _counts(":".join(low for low, _, _ in ends))
    highs = _counts(":".join(high if dots else low for low, dots, high in ends))
    if lows is None or highs is None:
        raise UsageError(
            f"--disaggregated {plain(text)!r} is not P:D; give prefill and decode nodes, each a "
            f"number or LOW..HIGH from 1 to {MOST_NODES:,}, such as 1..4:1..16"
        )
    for low, high in zip(lows, highs, strict=True):
        if low > high:
            raise UsageError(
                f"--disaggregated {plain(text)!r}: {low}..{high} holds nothing; write the smaller "
                "number first, such as 1..4:1..16"
            )
    return (lows[0], highs[0]), (lows[1], highs[1])


def _counts(text: str) -> tuple[int, int] | None:
    """Return the two numbers of `P:D`; None for anything else."""
    counts = [part for part in text.split(":") if part.isascii() and part.isdigit()]
    numbers = [int(part) for part in counts if len(part) <= len(str(MOST_NODES))]
    if text.count(":") != 1 or len(numbers) != 2 or not all(1 <= n <= MOST_NODES for n in numbers):
        return None
    return numbers[0], numbers[1]
