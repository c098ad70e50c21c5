"""Writing that leaves either the whole result or nothing behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path
from types import TracebackType

from oasis_sim.errors import InputError, UsageError
from oasis_sim.fileio.owned import in_the_way
from oasis_sim.fileio.text import printable

_LONGEST_NAME = 255
_LONGEST_PATH = 4000
"""Bytes that usual file systems permit for one name, and for a path with room for our files."""
_SHOWN_IN_PARTIAL = 40
"""Characters of the name in the temporary one, which must not outgrow the file system's limit."""


def write_atomic(path: str | Path, data: bytes | str) -> None:
    """Write a file beside its place and rename it; text is written as UTF-8.

    Raise InputError when the directory is missing or not writable, and where a device or pipe is.
    """
    path = Path(path)
    _check_replaceable(path)
    raw = data.encode() if isinstance(data, str) else data
    partial = None
    try:
        handle, partial = tempfile.mkstemp(prefix=".", suffix=".partial", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            os.fchmod(file.fileno(), 0o666 & ~_umask())
        os.replace(partial, path)
        partial = None
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None
    finally:
        if partial is not None:
            os.unlink(partial)


def check_writable(path: str | Path) -> None:
    """Raise InputError when a file cannot be written at a place: before the work, not after it."""
    path = Path(path)
    _check_replaceable(path)
    if path.is_dir() or not path.parent.is_dir():
        fix = "name a file in a directory"
        raise InputError("is no place for a file", file=printable(path), fix=fix)
    _probe(path.parent, path)


def _check_replaceable(path: Path) -> None:
    """Refuse a name that no file can have, and a device or pipe, which a file would replace."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:  # also a place below a file
        raise _unwritable(path, error) from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        fix = "name a file; what goes to standard output needs no name"
        raise InputError("is a device or a pipe, not a file", file=printable(path), fix=fix)


def _probe(directory: Path, wanted: Path) -> None:
    """Make and remove a file in a directory; permissions alone do not tell what will work."""
    try:
        handle, name = tempfile.mkstemp(prefix=".", suffix=".partial", dir=directory)
    except (OSError, ValueError) as error:
        raise _unwritable(wanted, error) from None
    os.close(handle)
    os.unlink(name)


def directory_path(name: str | Path) -> Path:
    """Return the path of a directory to write; raise UsageError where no directory can be."""
    if not str(name):
        raise UsageError("the name of the directory is empty; name a new directory")
    path = Path(name)
    size = len(os.fsencode(path))
    if size >= _LONGEST_PATH or any(len(os.fsencode(part)) > _LONGEST_NAME for part in path.parts):
        raise UsageError(f"{printable(path, 60)}: the name is too long; choose a shorter one")
    return path


class AtomicDirectory:
    """Fill a temporary sibling directory; on success it takes the final name.

        with AtomicDirectory("runs/a", force=False) as directory:
            (directory / "summary.json").write_text("{}")

    On an exception nothing is left behind and an older directory stays untouched. Raise
    UsageError when the place is taken: by a file or link, or by a non-empty directory without
    `force`. With `force` only a directory that holds a run and nothing else is replaced. Raise
    InputError when the place cannot be written, also for an OSError of the code inside.
    """

    def __init__(self, path: str | Path, *, force: bool) -> None:
        """Check that the place may be used and written; nothing stays there yet."""
        self.path = directory_path(path)
        self._force = force
        self._partial: Path | None = None
        self._made: list[Path] = []
        self._check_place()
        self._check_parents()

    def __enter__(self) -> Path:
        """Create the temporary directory (and missing parents) and return it."""
        parent = self.path.parent
        prefix = f".{self.path.name[:_SHOWN_IN_PARTIAL]}."
        try:
            self._made = [place for place in (parent, *parent.parents) if not place.exists()]
            parent.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=prefix, suffix=".partial", dir=parent))
            partial.chmod(0o777 & ~_umask())
        except (OSError, ValueError) as error:
            self._remove_parents()
            raise _unwritable(self.path, error) from None
        self._partial = partial
        return partial

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Rename on success, remove on failure."""
        partial, self._partial = self._partial, None
        assert partial is not None
        try:
            if kind is None:
                self._check_place()
                self._replace(partial)
        except OSError as failure:
            raise _unwritable(self.path, failure) from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            self._remove_parents()
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            raise _unwritable(self.path, error) from None

    def _remove_parents(self) -> None:
        """Remove the parents that were made for this directory and are empty still."""
        for place in self._made:
            with contextlib.suppress(OSError):
                place.rmdir()

    def _check_place(self) -> None:
        try:
            self._check_kind(printable(self.path, 200))
        except OSError as error:
            raise _unwritable(self.path, error) from None

    def _check_parents(self) -> None:
        """Refuse a place whose nearest existing parent takes no files."""
        try:
            parent = next(place for place in self.path.parents if place.exists())
        except (OSError, StopIteration) as error:
            raise _unwritable(self.path, error) from None
        _probe(parent, self.path)

    def _check_kind(self, shown: str) -> None:
        if self.path.is_symlink():
            raise UsageError(f"{shown}: is a symbolic link; name the directory itself")
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise UsageError(f"{shown}: is a file; name a new directory")
        if not any(self.path.iterdir()):
            return
        if not self._force:
            raise UsageError(f"{shown}: is not empty; choose another directory or add --force")
        obstacle = in_the_way(self.path)
        if obstacle is not None:
            raise UsageError(f"{shown}: {obstacle}; remove it yourself or choose another directory")

    def _replace(self, partial: Path) -> None:
        if not self.path.exists():
            os.rename(partial, self.path)
            return
        old = Path(tempfile.mkdtemp(prefix=".", suffix=".old", dir=self.path.parent))
        os.rename(self.path, old / "content")
        try:
            os.rename(partial, self.path)
        except OSError:
            os.rename(old / "content", self.path)
            raise
        finally:
            shutil.rmtree(old, ignore_errors=True)


def inside(directory: str | Path, name: str) -> Path:
    """Return the path of a file in a directory; refuse names and links that lead out of it."""
    path = Path(directory) / name
    if not path.resolve().is_relative_to(Path(directory).resolve()):
        raise InputError(
            "leads out of its directory", file=printable(path), fix="replace the link by the file"
        )
    return path


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _unwritable(path: Path, error: Exception) -> InputError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return InputError(f"cannot be written ({reason})", file=printable(path), fix="check the place")
