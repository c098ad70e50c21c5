"""A study as a table, JSON or CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import IO, Any

from oasis_sim.fileio import printable
from oasis_sim.quality.bootstrap import Estimate
from oasis_sim.quality.result import INDEX_AGREEMENT, CaseQuality, QualityResult
from oasis_sim.units import KIB

Rows = list[Sequence[Any]]


def write_result(result: QualityResult, form: str, detail: str, stream: IO[str]) -> None:
    """Write a study as ``table``, ``json`` or ``csv``.

    ``detail`` says what the rows of a table or CSV are: ``schemes``, ``layers``, ``stretches``.
    """
    from oasis_sim.report.csvfile import write_rows
    from oasis_sim.report.directory import json_text
    from oasis_sim.report.table import print_rows

    if form == "json":
        stream.write(json_text(result.to_json()))
        return
    rows = _detail_rows(result, detail) if detail != "schemes" else None
    if form == "csv":
        stream.write(write_rows(rows or _flat_rows(result)))
        return
    stream.write(f"{headline(result)}\n")
    if rows is None:
        print_rows(_table_rows(result), stream)
    else:
        print_rows([[_shown(cell) for cell in row] for row in rows], stream)
    stream.write(_legend(result))


def headline(result: QualityResult) -> str:
    """Say what was decoded."""
    facts = result.facts
    drafter = f"drafter {facts['drafter']}" if facts["drafter"] else "no drafter"
    return printable(
        f"{facts['model']['name']}, {facts['text']['name']}: {facts['prompt_tokens']} tokens, "
        f"{facts['steps']} steps ({facts['trajectory']['source']}); {_schemes_said(facts)}; "
        f"{drafter}; full attention: NLL {facts['full_attention_nll']:.3f}",
        600,
    )


def _schemes_said(facts: Mapping[str, Any]) -> str:
    """Name the schemes and their blocks, in tokens."""
    said = [f"{each['name']} in blocks of {each['block_tokens']}" for each in facts["schemes"]]
    return ("schemes " if len(said) > 1 else "scheme ") + ", ".join(said)


def _legend(result: QualityResult) -> str:
    interval = result.facts["interval"]
    unlike = "".join(
        f"{scheme['name']}: {text}\n"
        for scheme in result.facts["schemes"]
        for text in scheme["approximations"]
    )
    return unlike + (
        "KL(full || sparse) and NLL in nats; overlap, needed, fetched: shares of the chosen "
        "blocks;\nown text: equal tokens before the first difference from full attention's. "
        f"[95 %: {interval['method']}, blocks of {interval['block_steps']} steps]\n"
    )


def _table_rows(result: QualityResult) -> Rows:
    header = (
        *("budget", "predictor", "ratio", "KL", "same top-1", "NLL +", "mass", "overlap"),
        *("needed", "fetched", "KiB/step", "own text"),
    )
    rows: Rows = [header, *(_table_row(case) for case in result.cases)]
    if len(result.names) > 1:
        names = ["scheme", *(case.scheme.name for case in result.cases)]
        rows = [[name, *row] for name, row in zip(names, rows, strict=True)]
    alike = [case.estimates.get(INDEX_AGREEMENT) for case in result.cases]
    if None in alike:
        return rows
    column = ["as exact keys", *(f"{found.mean:.3f}" for found in alike if found is not None)]
    return [[*row, cell] for row, cell in zip(rows, column, strict=True)]


def _table_row(case: CaseQuality) -> Sequence[Any]:
    found, facts = case.estimates, case.facts()
    free = case.free_run
    return (
        facts["budget_tokens"],
        facts["predictor"],
        f"{facts['fetch_ratio']:g}",
        _interval(found["kl"], 4),
        f"{found['top1_agreement'].mean:.3f}",
        _interval(found["nll_difference"], 3),
        f"{found['attention_mass'].mean:.3f}",
        f"{found['overlap'].mean:.3f}",
        f"{found['needed'].mean:.3f}",
        f"{found['admitted'].mean:.3f}",
        f"{case.bytes_per_step / KIB:,.0f}",
        "-" if free is None else f"{free.equal_before_first_difference} of {free.tokens}",
    )


def _interval(found: Estimate, decimals: int) -> str:
    low, high = f"{found.low:.{decimals}f}", f"{found.high:.{decimals}f}"
    return f"{found.mean:.{decimals}f} [{low}, {high}]"


def _flat_rows(result: QualityResult) -> Rows:
    """Return one row per scheme with every number, and what it was measured on."""
    about = {
        "model": result.facts["model"]["name"],
        "text": result.facts["text"]["name"],
        "prompt_tokens": result.facts["prompt_tokens"],
        "steps": result.facts["steps"],
    }
    rows = [{**about, **case.flat()} for case in result.cases]
    return [list(rows[0]), *(list(row.values()) for row in rows)]


def _detail_rows(result: QualityResult, detail: str) -> Rows:
    """Return one row per scheme and layer, or stretch of steps."""
    rows = []
    for case in result.cases:
        facts = case.facts()
        named = {
            name: facts[name] for name in ("scheme", "budget_tokens", "predictor", "fetch_ratio")
        }
        rows += [{**named, **asdict(part)} for part in getattr(case, detail)]
    return [list(rows[0]), *(list(row.values()) for row in rows)]


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
