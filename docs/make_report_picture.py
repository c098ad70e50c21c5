"""Draw part of a plan's report as PNG: the picture of the README.

    python docs/make_report_picture.py

Runs the plan of ``COMMAND`` (about half a minute) and lets Chromium draw the answer and two of its
curves. Needs Chromium or Chrome, and Pillow (the extra `plot` brings it). The file also holds the
command and what the report says of the two schemes, which a test compares with the program.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from html import unescape
from pathlib import Path

from PIL import Image, ImageChops
from PIL.PngImagePlugin import PngInfo

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "report.png"
COMMAND = (
    *("oasis-sim", "plan", "--gpu", "h100", "--scheme", "dense,oasis", "--rate", "0.5"),
    *("--context", "16384", "--output-tokens", "2048", "--slo", "ttft_p95=10s,tpot_p99=60ms"),
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH, MOST_HEIGHT, SCALE = 980, 1600, 2
COLOURS = 64
SECTION = re.compile(r'<h2 id="(\w+)">Speed by scheme')
WHERE_IT_PAYS = re.compile(r">([^<>]* beats dense [^<>]*)<")


def main() -> None:
    """Run the plan, and draw part of its report."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"needs one of {', '.join(BROWSERS)}")
    with tempfile.TemporaryDirectory() as scratch:
        page, drawn = Path(scratch) / "plan.html", Path(scratch) / "drawn.png"
        program = [sys.executable, str(ROOT / "cli.py"), *COMMAND[1:], "--report", str(page)]
        subprocess.run([*program, "--quiet"], check=True, stdout=subprocess.DEVNULL)
        report = page.read_text(encoding="utf-8")
        page.write_text(part_of(report), encoding="utf-8")
        subprocess.run(
            [
                *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *(f"--window-size={WIDTH},{MOST_HEIGHT}", f"--force-device-scale-factor={SCALE}"),
                *(f"--screenshot={drawn}", page.as_uri()),
            ],
            check=True,
            capture_output=True,
        )
        save(drawn, report)


def part_of(report: str) -> str:
    """Return a report that shows only its title, its answer and two curves over all schemes."""
    section = found(SECTION, report)
    hidden = (
        "nav,footer,details,.csv,.scroll,section,h2,figure:nth-of-type(n+3){display:none}"
        f'section[aria-labelledby="answer"],section[aria-labelledby="{section}"]{{display:block}}'
    )
    return report.replace("</style>", hidden + "</style>", 1)


def save(drawn: Path, report: str) -> None:
    """Write the picture without the empty space below, with its command and what it shows."""
    about = PngInfo()
    about.add_text("Command", shlex.join(COMMAND))
    about.add_text("Description", unescape(found(WHERE_IT_PAYS, report)))
    with Image.open(drawn) as image:
        page = image.convert("RGB")
    paper = Image.new("RGB", page.size, page.getpixel((0, 0)))
    box = ImageChops.difference(page, paper).getbbox()
    if box is None:
        sys.exit("the browser drew nothing")
    height = min(page.height, box[3] + 12 * SCALE)
    part = page.crop((0, 0, page.width, height)).quantize(COLOURS)
    part.save(PICTURE, pnginfo=about, optimize=True)


def found(pattern: re.Pattern[str], report: str) -> str:
    """Return what a pattern finds in a report."""
    match = pattern.search(report)
    if match is None:
        sys.exit(f"not in the report: {pattern.pattern}")
    return match.group(1)


if __name__ == "__main__":
    main()
