"""Print or renew the tables of docs/networks.md: measured transfers beside the network model.

    python docs/network_table.py --write

The numbers come from validation/network-*.json; a test compares both.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "networks.md"
BEGIN = "<!-- measured transfers: renew with `python docs/network_table.py --write` -->"
END = "<!-- end of measured transfers -->"
NONE = "None yet: a machine that nothing else uses is still to be measured.\n"


def main() -> None:
    """Print the tables, or put them into the document."""
    text = DOCUMENT.read_text(encoding="utf-8")
    if "--write" in sys.argv[1:]:
        DOCUMENT.write_text(renewed(text), encoding="utf-8")
    else:
        print(tables())


def renewed(text: str) -> str:
    """Return the document with the tables of the committed measurements."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{rest.partition(END)[2]}"


def tables() -> str:
    """Return one section per measurement."""
    files = sorted((ROOT / "validation").glob("network-*.json"))
    return "\n".join(section(path) for path in files) or NONE


def section(path: Path) -> str:
    """Return origin, held-out transfers and summary of one measurement as Markdown."""
    found = json.loads(path.read_text(encoding="utf-8"))
    summary = found["summary"]
    lines = [
        f"`validation/{path.name}`: {found['transport']}, {found['memory']}, {found['peer']}, "
        f"{found['settings']}; {found['machine']}, {found['date'][:10]}.",
        "",
        "| units | bytes each | measured us | spread % | simulated us | error % | GB/s |",
        "|---|---|---|---|---|---|---|",
        *(row(each) for each in found["rows"] if each["held_out"]),
        "",
        f"Median absolute error over the {summary['points']} kinds that were not fitted: "
        f"{summary['median_abs_error_pct']:.1f} %, largest {summary['max_abs_error_pct']:.1f} %; "
        f"their own quartiles lie {summary['median_spread_pct']:.0f} % apart in the median.",
        "",
    ]
    return "\n".join(lines)


def row(each: dict[str, Any]) -> str:
    """Return one transfer as a line of the table."""
    return (
        f"| {each['count']} | {each['unit_bytes']:,} | {each['measured_us']:,.1f} | "
        f"{each['spread_pct']:.0f} | "
        f"{each['simulated_us']:,.1f} | {each['error_pct']:+.1f} | {each['gb_per_s']:.2f} |"
    )


if __name__ == "__main__":
    main()
