"""Finding inputs: the user's first, then the shipped ones, with compressed spellings."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given

import oasis_sim
from oasis_sim.errors import InputError
from oasis_sim.fileio import find_input, shipped_inputs
from tests.strategies import hostile_names


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["h100", "H100", "h100.yaml"])
def test_shipped_names(beside: Path, name: str) -> None:
    """A shipped input is found by name, with or without its suffix, in any case."""
    assert "h100.yaml" == find_input(name, "profile").name


@pytest.mark.parametrize("name", ["h100", "h100.yaml"])
def test_own_file_comes_first(beside: Path, name: str) -> None:
    """A file beside the user hides the shipped one; a directory does not."""
    (beside / name).mkdir()
    assert find_input("h100", "profile").is_absolute()
    (beside / name).rmdir()
    (beside / name).write_text("name: mine")
    assert Path(name) == find_input("h100", "profile")


@pytest.mark.parametrize("stored", ["t.jsonl", "t.jsonl.gz", "t.jsonl.zst"])
@pytest.mark.parametrize("asked", ["t", "t.jsonl", "sub/t.jsonl", "sub/t"])
def test_compressed_spelling(beside: Path, stored: str, asked: str) -> None:
    """A trace's name also finds its compressed file, in a folder too."""
    place = beside / Path(asked).parent
    place.mkdir(exist_ok=True)
    (place / stored).write_text("x")
    assert Path(asked).parent / stored == find_input(asked, "trace")


def test_unknown_name(beside: Path) -> None:
    """An unknown name is answered with the built-in ones and the nearest."""
    with pytest.raises(InputError, match=r"built in: .*qwen3-8b.*did you mean 'qwen3-8b'\?"):
        find_input("qwen3-8", "model")


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_impossible_name(beside: Path, name: str) -> None:
    """Names that no file can have are refused."""
    with pytest.raises(InputError, match="empty or holds a NUL"):
        find_input(name, "trace")


@given(hostile_names())
def test_hostile_names(name: str) -> None:
    """Any name is found, taken as a path, or refused with a harmless message."""
    for kind in ("profile", "trace", "model", "scheme"):
        try:
            assert isinstance(find_input(name, kind), Path)
        except InputError as error:
            assert str(error).isprintable()


def test_shipped_inputs_are_sorted() -> None:
    """Lists of what is built in come in one order."""
    for kind in ("profile", "model", "scheme", "trace"):
        assert sorted(shipped_inputs(kind)) == list(shipped_inputs(kind))
    assert {"dense", "oasis", "on-demand", "oracle", "previous-token"} <= set(
        shipped_inputs("scheme")
    )


def test_the_running_checkout_comes_before_an_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data beside the running package are used, though another copy is installed."""
    monkeypatch.setattr(oasis_sim, "__file__", str(tmp_path / "oasis_sim" / "__init__.py"))
    (tmp_path / "hw_profiles").mkdir()
    (tmp_path / "hw_profiles" / "mine.yaml").write_text("name: mine")
    assert {"mine": tmp_path / "hw_profiles" / "mine.yaml"} == shipped_inputs("profile")
    assert tmp_path not in shipped_inputs("model")["qwen3-8b"].parents
