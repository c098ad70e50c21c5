"""Renew what the README shows of the program: the table of its first command, and the timeline.

    python docs/make_readme.py

Run it after a change of results or of the table; a test compares the two. The picture needs
matplotlib (`pip install 'oasis-sim[plot]'`).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMAND = ("run", "--profile", "h100", "--trace", "aime.jsonl")
BEGIN, END = "<!-- first run -->\n```text\n", "```\n<!-- end of first run -->"


def main() -> None:
    """Run the command, put its table into the README and draw its timeline."""
    readme = ROOT / "README.md"
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        table = subprocess.run(
            [sys.executable, str(ROOT / "cli.py"), *COMMAND, "--out", str(run), "--quiet"],
            check=True,
            capture_output=True,
            text=True,
            cwd=ROOT,
        ).stdout
        script = str(ROOT / "docs" / "make_timeline.py")
        picture = str(ROOT / "docs" / "timeline.svg")
        subprocess.run([sys.executable, script, str(run), picture], check=True)
    text = readme.read_text(encoding="utf-8")
    readme.write_text(replaced(text, table), encoding="utf-8")


def replaced(text: str, table: str) -> str:
    """Return the README's text with another table between the two marks."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{table}{END}{tail}"


if __name__ == "__main__":
    main()
