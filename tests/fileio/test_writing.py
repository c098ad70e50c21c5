"""Atomic writing: the whole result or nothing, and nothing of the user's destroyed."""

from __future__ import annotations

from pathlib import Path

import pytest

from oasis_sim.errors import InputError, UsageError
from oasis_sim.fileio import MANIFEST_NAME, AtomicDirectory, write_atomic


def names(directory: Path) -> list[str]:
    """List everything in a directory, hidden entries too."""
    return sorted(path.name for path in directory.iterdir())


def test_write_replaces_the_file(tmp_path: Path) -> None:
    """Text and bytes are written; no partial file stays."""
    path = tmp_path / "file"
    write_atomic(path, "first \N{MICRO SIGN}")
    write_atomic(path, b"second")
    assert b"second" == path.read_bytes()
    assert ["file"] == names(tmp_path)


def test_write_does_not_follow_a_link(tmp_path: Path) -> None:
    """A link at the place is replaced; what it points to stays."""
    (tmp_path / "target").write_text("precious")
    (tmp_path / "link").symlink_to("target")
    write_atomic(tmp_path / "link", "new")
    assert "precious" == (tmp_path / "target").read_text()
    assert not (tmp_path / "link").is_symlink()


def test_write_failures(tmp_path: Path) -> None:
    """A missing directory and a directory at the place are refused; nothing stays."""
    (tmp_path / "taken").mkdir()
    for path in (tmp_path / "missing" / "file", tmp_path / "taken", Path("a\0b")):
        with pytest.raises(InputError, match="cannot be written"):
            write_atomic(path, "x")
    assert ["taken"] == names(tmp_path)


def test_directory_appears_at_the_end(tmp_path: Path) -> None:
    """The directory is not there until it is complete; parents are made."""
    place = tmp_path / "runs" / "a"
    with AtomicDirectory(place, force=False) as partial:
        (partial / "file").write_text("x")
        assert not place.exists()
    assert ["file"] == names(place)
    assert ["a"] == names(place.parent)


def test_directory_failure_leaves_nothing(tmp_path: Path) -> None:
    """An exception, also an interrupt, removes what was written."""
    for error in (RuntimeError("x"), KeyboardInterrupt()):
        with pytest.raises(type(error)), AtomicDirectory(tmp_path / "a", force=False) as partial:
            (partial / "file").write_text("x")
            raise error
        assert [] == names(tmp_path)


def test_taken_places_are_refused(tmp_path: Path) -> None:
    """Files, links and directories with content are not touched, force or not."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("precious")
    (tmp_path / "link").symlink_to("home")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name, force, said in (
        ("file", True, "is a file"),
        ("home", False, "is not empty"),
        ("home", True, "not written by this program"),
        ("link", True, "symbolic link"),
        ("dangling", True, "symbolic link"),
    ):
        with pytest.raises(UsageError, match=said):
            AtomicDirectory(tmp_path / name, force=force)
    assert "precious" == (tmp_path / "home" / "thesis.txt").read_text()


def test_force_replaces_an_own_directory(tmp_path: Path) -> None:
    """With force an older run directory is replaced; after a failure it is still there."""
    place = tmp_path / "run"
    with AtomicDirectory(place, force=False) as partial:
        (partial / MANIFEST_NAME).write_text("old")
    with pytest.raises(UsageError, match="add --force"):
        AtomicDirectory(place, force=False)
    with pytest.raises(RuntimeError), AtomicDirectory(place, force=True):
        raise RuntimeError
    assert "old" == (place / MANIFEST_NAME).read_text()
    with AtomicDirectory(place, force=True) as partial:
        (partial / MANIFEST_NAME).write_text("new")
    assert "new" == (place / MANIFEST_NAME).read_text()
    assert ["run"] == names(tmp_path)


def test_empty_directory_is_used(tmp_path: Path) -> None:
    """An empty directory is a free place."""
    (tmp_path / "run").mkdir()
    with AtomicDirectory(tmp_path / "run", force=False) as partial:
        (partial / "file").write_text("x")
    assert ["file"] == names(tmp_path / "run")


def test_place_taken_meanwhile(tmp_path: Path) -> None:
    """A directory that someone filled during the run is not overwritten."""
    place = tmp_path / "run"
    with pytest.raises(UsageError, match="not empty"), AtomicDirectory(place, force=False):
        place.mkdir()
        (place / "other").write_text("x")
    assert ["other"] == names(place)
    assert ["run"] == names(tmp_path)
