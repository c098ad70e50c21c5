"""Lists of what is built in."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from oasis_sim.cli.main import main
from oasis_sim.scheme import load_scheme

NOUNS = {"profiles": "h100", "networks": "roce-400", "models": "qwen3-8b", "schemes": "oasis"}


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the standard output of a command that must succeed in silence."""
    assert main(list(arguments)) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return shown.out


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Return the one JSON document that a command prints."""
    return json.loads(answer(capsys, *arguments, "--format", "json"))


@pytest.mark.parametrize(("noun", "name"), NOUNS.items())
def test_lists_name_what_is_built_in(
    noun: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Table, JSON and CSV hold the same names."""
    names = [entry["name"] for entry in as_json(capsys, noun)]
    assert name in names
    rows = list(csv.DictReader(io.StringIO(answer(capsys, noun, "--format", "csv"))))
    assert [row["name"] for row in rows] == names
    table = answer(capsys, noun)
    assert all(listed in table for listed in names)


@pytest.mark.parametrize(("noun", "name"), NOUNS.items())
def test_show_gives_one_in_full(noun: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The shown entry is the named one, in every format."""
    assert as_json(capsys, noun, "show", name)["name"].lower() == name
    assert name in answer(capsys, noun, "show", name).lower()
    assert name in answer(capsys, noun, "show", name, "--format", "csv").lower()


def test_a_profile_is_shown_with_the_source_of_its_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every limit says where it comes from."""
    profile = as_json(capsys, "profiles", "show", "h100")
    assert profile["gpu"]["hbm_bytes_per_s"] == 3.35e12
    assert profile["sources"]


def test_a_model_is_shown_with_its_kv_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    """KV per token of Qwen3-8B: 2 x 36 layers x 8 heads x 128 x 2 bytes."""
    model = as_json(capsys, "models", "show", "qwen3-8b")
    assert model["kv_bytes_per_token"] == 2 * 36 * 8 * 128 * 2
    assert model["block_head_bytes"] == 8_192


@pytest.mark.parametrize("noun", NOUNS)
def test_an_unknown_name_is_bad_input(noun: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that lists what there is, exit code 3."""
    assert main([noun, "show", "h9000-oasiss"]) == 3
    shown = capsys.readouterr()
    assert shown.out == ""
    assert NOUNS[noun] in shown.err
    assert len(shown.err.splitlines()) == 1


def test_a_scheme_is_shown_with_its_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    """Words and picture come before the parts; JSON holds them as lists."""
    table = answer(capsys, "schemes", "show", "on-demand")
    assert table.startswith("On-demand retrieval\n")
    assert "attention waits for scan, selection and transfer of its own layer" in table
    assert "  compute   [QKV]..." in table
    assert table.index("compute") < table.index("budget_tokens")
    explanation = as_json(capsys, "schemes", "show", "on-demand")["explanation"]
    assert set(explanation) == {"resident", "moves", "waits", "picture"}
    assert any(line.startswith("compute") for line in explanation["picture"])


def test_a_scheme_that_is_shown_can_be_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table ends with a scheme file; what follows from the parts stands there as comments."""
    shown = answer(capsys, "schemes", "show", "freekv").split("as a scheme file\n")[1]
    assert "# chosen_blocks: 64" in shown
    (tmp_path / "copy.yaml").write_text(shown)
    assert load_scheme(str(tmp_path / "copy.yaml")) == load_scheme("freekv")
