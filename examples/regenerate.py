"""Run the commands of every example's README and renew its reports and its answer.

    python examples/regenerate.py

Run it after a change of simulated numbers (about a minute); a test compares the bytes.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from oasis_sim.cli.main import main as oasis_sim  # noqa: E402 - from this checkout

ANSWER = re.compile(r"(?<=<!-- answer -->\n).*?(?=<!-- end of answer -->)", re.DOTALL)
MADE = ("sweep",)


def examples() -> list[Path]:
    """Return the folders of the examples."""
    return sorted(path.parent for path in HERE.glob("*/README.md"))


def commands_of(readme: str) -> list[list[str]]:
    """Return the `oasis-sim` commands of a README, as arguments."""
    blocks = re.findall(r"```sh\n(.*?)```", readme, re.DOTALL)
    return [shlex.split(line)[1:] for block in blocks for line in block.splitlines()]


def regenerate(folder: Path) -> None:
    """Run the commands in a folder, then put the report's answer into the README."""
    readme = folder / "README.md"
    text = readme.read_text(encoding="utf-8")
    before = Path.cwd()
    os.chdir(folder)
    try:
        for arguments in commands_of(text):
            more = ["--workers", "1"] if arguments[0] in ("plan", "sweep") else []
            code = oasis_sim([*arguments, *more, "--quiet"])
            if code:
                raise SystemExit(f"{folder.name}: code {code} from {shlex.join(arguments)}")
    finally:
        os.chdir(before)
    for name in MADE:
        shutil.rmtree(folder / name, ignore_errors=True)
    readme.write_text(with_answer(text, folder / "report.md"), encoding="utf-8")


def with_answer(readme: str, report: Path) -> str:
    """Return a README with the answer of a report in Markdown."""
    answer = report.read_text(encoding="utf-8").split("\n\n")[1].strip("*")
    return ANSWER.sub(lambda _: f"> {answer}\n", readme)


if __name__ == "__main__":
    for each in examples():
        regenerate(each)
