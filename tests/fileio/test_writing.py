"""Atomic writing: the whole result or nothing, and nothing of the user's destroyed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from oasis_sim.errors import InputError, UsageError
from oasis_sim.fileio import MANIFEST_NAME, AtomicDirectory, check_writable, write_atomic


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


@pytest.mark.parametrize("name", ["missing/file", "taken", "file/below", "a\0b"])
def test_a_file_that_cannot_be_written_is_told_before(tmp_path: Path, name: str) -> None:
    """The check finds what the writing would, and leaves nothing."""
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"no place for a file|cannot be written"):
        check_writable(tmp_path / name)
    assert ["file", "taken"] == names(tmp_path)
    check_writable(tmp_path / "new")
    check_writable(tmp_path / "file")
    assert ["file", "taken"] == names(tmp_path)


@pytest.mark.parametrize("linked", [False, True])
def test_a_pipe_or_device_is_not_replaced(tmp_path: Path, linked: bool) -> None:
    """A file would take its place for everybody, where the rights allow that: /dev/null, say."""
    place = pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    if linked:
        place = tmp_path / "link"
        place.symlink_to("pipe")
    for write in (check_writable, lambda path: write_atomic(path, "x")):
        with pytest.raises(InputError, match="is a device or a pipe, not a file"):
            write(place)
    assert pipe.is_fifo()
    assert linked == place.is_symlink()


@pytest.mark.parametrize("name", ["file/run", "file/deeper/run"])
def test_a_directory_below_a_file_is_told_before(tmp_path: Path, name: str) -> None:
    """A file in the way of a parent is found before anything is computed."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        AtomicDirectory(tmp_path / name, force=False)
    AtomicDirectory(tmp_path / "a" / "b" / "run", force=False)
    assert ["file"] == names(tmp_path)


@pytest.mark.parametrize("place", ["/proc/run", "/proc/sys/run"])
def test_a_read_only_parent_is_told_before(place: str) -> None:
    """Where nobody, whatever the rights, can make a file."""
    if not Path(place).parent.is_dir():
        pytest.skip("no such file system here")
    with pytest.raises(InputError, match="cannot be written"):
        AtomicDirectory(place, force=False)
    with pytest.raises(InputError, match="cannot be written"):
        check_writable(place)


def test_a_parent_without_permission_is_told_before(tmp_path: Path) -> None:
    """A directory of somebody else."""
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="Permission denied"):
        AtomicDirectory(tmp_path / "run", force=False)
    tmp_path.chmod(0o700)


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


RUN = '{"format": "oasis-run", "files": {"summary.json": {}}}'
"""A manifest that lists one file."""


def test_force_replaces_an_own_directory(tmp_path: Path) -> None:
    """With force an older run directory is replaced; after a failure it is still there."""
    place = tmp_path / "run"
    with AtomicDirectory(place, force=False) as partial:
        (partial / MANIFEST_NAME).write_text(RUN)
        (partial / "summary.json").write_text("old")
        (partial / "run.log").write_text("log")
    with pytest.raises(UsageError, match="add --force"):
        AtomicDirectory(place, force=False)
    with pytest.raises(RuntimeError), AtomicDirectory(place, force=True):
        raise RuntimeError
    assert "old" == (place / "summary.json").read_text()
    with AtomicDirectory(place, force=True) as partial:
        (partial / MANIFEST_NAME).write_text(RUN)
    assert [MANIFEST_NAME] == names(place)
    assert ["run"] == names(tmp_path)


@pytest.mark.parametrize(
    "manifest",
    [
        "",
        "{}",
        "[]",
        '{"files": {"precious.txt": {}}}',
        '{"format": "web-extension", "files": {"precious.txt": {}}}',
        '{"format": "oasis-run", "files": ["precious.txt"]}',
        RUN,
    ],
)
def test_force_spares_what_others_wrote(tmp_path: Path, manifest: str) -> None:
    """A manifest.json of something else, or files beside those of a run, stop --force."""
    (tmp_path / MANIFEST_NAME).write_text(manifest)
    (tmp_path / "precious.txt").write_text("years of work")
    said = "holds precious.txt" if manifest == RUN else "not written by this program"
    with pytest.raises(UsageError, match=said):
        AtomicDirectory(tmp_path, force=True)
    assert [MANIFEST_NAME, "precious.txt"] == names(tmp_path)


def test_force_spares_a_directory_under_a_listed_name(tmp_path: Path) -> None:
    """A directory called like a file of the run is not part of the run."""
    (tmp_path / MANIFEST_NAME).write_text(RUN)
    (tmp_path / "summary.json").mkdir()
    with pytest.raises(UsageError, match=r"holds summary\.json, which is a directory"):
        AtomicDirectory(tmp_path, force=True)


@pytest.mark.parametrize(
    ("name", "said"), [("", "is empty"), ("x" * 300, "too long"), (f"a/{300 * 'x'}/b", "too long")]
)
def test_names_that_no_directory_can_have(name: str, said: str) -> None:
    """An empty and a too long name are refused before the work."""
    with pytest.raises(UsageError, match=said):
        AtomicDirectory(name, force=False)


def test_the_longest_name_is_usable(tmp_path: Path) -> None:
    """The temporary name is not longer than the file system permits."""
    with AtomicDirectory(tmp_path / ("x" * 255), force=False) as partial:
        (partial / "file").write_text("x")
    assert ["x" * 255] == names(tmp_path)


def test_a_full_disk_names_the_place_and_leaves_nothing(tmp_path: Path) -> None:
    """An OSError without a file name, as of a full disk, becomes an InputError with the path."""
    place = tmp_path / "new" / "parent" / "run"
    with (
        pytest.raises(InputError, match=r"parent/run: cannot be written \(No space left"),
        AtomicDirectory(place, force=False) as partial,
    ):
        (partial / "file").write_text("x")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert [] == names(tmp_path)


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
