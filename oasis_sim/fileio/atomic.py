"""Writing that leaves either the whole result or nothing behind."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType

from oasis_sim.errors import InputError, UsageError
from oasis_sim.fileio.text import printable

MANIFEST_NAME = "manifest.json"
"""The file that marks a directory as one of ours, which --force may replace."""


def write_atomic(path: str | Path, data: bytes | str) -> None:
    """Write a file beside its place and rename it; text is written as UTF-8.

    Raise InputError when the directory is missing or not writable.
    """
    path = Path(path)
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


class AtomicDirectory:
    """Fill a temporary sibling directory; on success it takes the final name.

        with AtomicDirectory("runs/a", force=False) as directory:
            (directory / "summary.json").write_text("{}")

    On an exception nothing is left behind and an older directory stays untouched. Raise
    UsageError when the place is taken: by a file or link, or by a non-empty directory without
    `force`. With `force` only a directory that holds a manifest.json is replaced.
    """

    def __init__(self, path: str | Path, *, force: bool) -> None:
        """Check that the place may be used; nothing is written yet."""
        self.path = Path(path)
        self._force = force
        self._partial: Path | None = None
        self._check_place()

    def __enter__(self) -> Path:
        """Create the temporary directory (and missing parents) and return it."""
        try:
            parent = self.path.parent
            parent.mkdir(parents=True, exist_ok=True)
            partial = Path(
                tempfile.mkdtemp(prefix=f".{self.path.name}.", suffix=".partial", dir=parent)
            )
            partial.chmod(0o777 & ~_umask())
        except (OSError, ValueError) as error:
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

    def _check_place(self) -> None:
        shown = printable(self.path)
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
        if not (self.path / MANIFEST_NAME).is_file():
            raise UsageError(
                f"{shown}: holds no {MANIFEST_NAME}, so it was not written by this program; "
                "remove it yourself or choose another directory"
            )

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
