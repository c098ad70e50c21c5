"""Write runs side by side: table with reasons, JSON, or CSV."""

from __future__ import annotations

import io
from dataclasses import replace
from string import ascii_uppercase
from typing import IO, Any

from oasis_sim.errors import InputError
from oasis_sim.report.csvfile import write_rows
from oasis_sim.report.directory import json_text
from oasis_sim.report.numbers import MILLISECONDS_SHOWN, number
from oasis_sim.report.side_by_side import Case, Line, inputs_that_differ, lines_of
from oasis_sim.report.table import print_rows
from oasis_sim.report.why import limits_of, reasons
from oasis_sim.text import one_line

SCHEMA_VERSION = 1
LONGEST_NAME = 20
"""Names with more characters than this stand above the table, and letters in it."""
PROXIES = "quality proxies are read off the trace; they are not accuracy"


def check_case(case: Case) -> Case:
    """Return a case whose summary holds all that a comparison reads; raise InputError otherwise."""
    try:
        json_text(comparison_json((case, case)))
        _write_table((case, case), io.StringIO(), everything=True)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"its summary is damaged ({type(error).__name__}: {error})",
            file=case.name,
            fix="run again",
        ) from None
    return case


def comparison_json(cases: tuple[Case, ...]) -> dict[str, Any]:
    """Return the comparison as plain values; lists follow the order of the cases."""
    return {
        "schema_version": SCHEMA_VERSION,
        "cases": [
            {
                "name": case.name,
                "scenario": case.summary["scenario"],
                "limits": limits_of(case.summary),
            }
            for case in cases
        ],
        "inputs_that_differ": [
            {"input": each.name, "values": list(each.values)} for each in inputs_that_differ(cases)
        ],
        "metrics": [
            {
                "section": line.metric.section,
                "metric": line.metric.name,
                "unit": line.metric.unit,
                "values": list(line.values),
                "ratios_to_first": list(line.ratios),
                "differs": line.differs,
            }
            for line in lines_of(cases)
        ],
        "reasons": list(reasons(cases)),
    }


def write_comparison(
    cases: tuple[Case, ...], output_format: str, stream: IO[str], everything: bool = False
) -> None:
    """Write a comparison; tables leave out what does not differ unless `everything`."""
    if output_format == "json":
        stream.write(json_text(comparison_json(cases)))
    elif output_format == "csv":
        header = ["section", "metric", "unit", *(case.name for case in cases)]
        rows = [
            [line.metric.section, line.metric.name, line.metric.unit, *line.values]
            for line in lines_of(cases)
        ]
        stream.write(write_rows([header, *rows]))
    else:
        _write_table(cases, stream, everything)


def notes_of(cases: tuple[Case, ...]) -> tuple[str, ...]:
    """Return what the numbers rest on: synthetic traces, and that proxies are proxies."""
    found: dict[str, None] = {}
    for case in cases:
        trace = case.summary["scenario"]["trace"]
        if trace["origin"] in {"synthetic", "mixed"}:
            found[f"trace {trace['name']} is synthetic: block moves and quality are modelled"] = (
                None
            )
    if any(case.summary["scenario"]["offload"] for case in cases):
        found[PROXIES] = None
    return tuple(found)


def _write_table(cases: tuple[Case, ...], stream: IO[str], everything: bool) -> None:
    cases = _lettered(cases, stream)
    names = [case.name for case in cases]
    differing = [
        [each.name, *(_input(value) for value in each.values)] for each in inputs_that_differ(cases)
    ]
    if differing:
        print_rows([["inputs that differ", *names], *differing], stream)
        stream.write("\n")
    else:
        stream.write("the scenarios are the same\n\n")
    lines = [line for line in lines_of(cases) if everything or line.differs]
    if lines:
        ratios = [f"{name} / {names[0]}" for name in names[1:]]
        print_rows([["results", "unit", *names, *ratios], *_cells(lines)], stream)
    else:
        stream.write("no result differs by more than 1 %\n")
    stream.write("\nwhy\n")
    for text in (*reasons(cases), *notes_of(cases)):
        stream.write(f"- {one_line(text)}\n")


def _lettered(cases: tuple[Case, ...], stream: IO[str]) -> tuple[Case, ...]:
    """Return cases as a table calls them; write what letters mean where names are long."""
    long = any(len(case.name) > LONGEST_NAME for case in cases)
    if not long or len(cases) > len(ascii_uppercase):
        return cases
    letters = ascii_uppercase[: len(cases)]
    print_rows([[letter, case.name] for letter, case in zip(letters, cases, strict=True)], stream)
    stream.write("\n")
    return tuple(replace(case, name=name) for name, case in zip(letters, cases, strict=True))


def _input(value: Any) -> str:
    """Return a part of a scenario as a table shows it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float) or value is None:
        return number(value)
    return str(value)


def _cells(lines: list[Line]) -> list[list[str]]:
    """Return rows of cells, with a title above each section."""
    rows: list[list[str]] = []
    section = ""
    for line in lines:
        if line.metric.section != section:
            section = line.metric.section
            rows.append([section, *[""] * (2 * len(line.values))])
        ratios = ["-" if ratio is None else f"{ratio:.2f}x" for ratio in line.ratios[1:]]
        rows.append([f"  {_title(line)}", *_values(line), *ratios])
    return rows


def _in_seconds(line: Line) -> bool:
    """Say whether a line of milliseconds is too long to be read in them."""
    largest = max((abs(value) for value in line.values if value is not None), default=0.0)
    return line.metric.unit == "ms" and largest >= MILLISECONDS_SHOWN


def _title(line: Line) -> str:
    """Return the metric's name; its unit in the name changes with that of the values."""
    name = line.metric.name
    return f"{name.removesuffix('_ms')}_s" if _in_seconds(line) else name


def _values(line: Line) -> list[str]:
    """Return the unit, then the values in it."""
    if not _in_seconds(line):
        return [line.metric.unit, *(number(value) for value in line.values)]
    return ["s", *(number(None if value is None else value / 1_000) for value in line.values)]
