"""The picture of a report in the README shows what the program says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from oasis_sim.cli.main import main

Image = pytest.importorskip("PIL.Image", reason="reading PNG needs the extra 'plot'")

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "report.png"
LOSES = re.compile(r"below that it loses: ([\d.,]+) against ([\d.,]+) tokens/s at (\d+)$")


def test_the_command_is_in_the_readme() -> None:
    """A reader can have the whole report."""
    with Image.open(PICTURE) as image:
        command = image.info["Command"]
    readme = (ROOT / "README.md").read_text("utf-8")
    assert command in " ".join(readme.split())


def test_it_shows_what_the_program_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where dense is still faster, both speeds are the simulated ones of today.

    `python docs/make_report_picture.py` renews the picture.
    """
    with Image.open(PICTURE) as image:
        found = LOSES.search(image.info["Description"])
    assert found is not None
    at_once = int(found.group(3))
    monkeypatch.chdir(tmp_path)
    simulated = []
    for scheme in ("oasis", "dense"):
        load = ["--concurrency", str(at_once), "--requests", str(2 * at_once)]
        sizes = ["--context", "16384", "--output-tokens", "2048"]
        line = ["run", "--profile", "h100", "--scheme", scheme, *load, *sizes]
        assert 0 == main([*line, "--format", "json", "--quiet"])
        result = json.loads(capsys.readouterr().out)
        simulated.append(f"{result['throughput']['output_tokens_per_s']:.1f}")
    assert list(found.group(1, 2)) == simulated
