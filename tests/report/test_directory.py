"""The run directory: complete, deterministic, never half written."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from oasis_sim.errors import InputError, UsageError
from oasis_sim.metrics import summarise
from oasis_sim.report.directory import (
    holds_same_run,
    is_whole_run,
    manifest_of,
    run_files,
    write_run,
)
from tests.factories import tiny_result


def tiny_files() -> dict[str, bytes]:
    """Return the files of the factory's run."""
    result = tiny_result()
    return run_files(result, "config\n", summarise(result))


def test_the_same_run_gives_the_same_bytes() -> None:
    """Nothing in the files depends on when or where they were made."""
    assert tiny_files() == tiny_files()


def test_the_manifest_holds_the_hash_of_each_file_but_the_log(tmp_path: Path) -> None:
    """Hashes match what lies on disk; the log differs between equal runs and is left out."""
    write_run(tmp_path / "run", tiny_files(), "wall clock\n")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    found = {path.name for path in (tmp_path / "run").iterdir()}
    assert found == {*manifest["files"], "manifest.json", "run.log"}
    for name, entry in manifest["files"].items():
        content = (tmp_path / "run" / name).read_bytes()
        assert entry == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def test_a_taken_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    """Without force nothing is overwritten."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        write_run(tmp_path, tiny_files(), "")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_force_replaces_an_earlier_run_only(tmp_path: Path) -> None:
    """Force is for runs; it never removes a directory of something else."""
    write_run(tmp_path / "run", {"config.yaml": b"old"}, "")
    write_run(tmp_path / "run", tiny_files(), "", force=True)
    assert (tmp_path / "run" / "config.yaml").read_bytes() == b"config\n"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match=r"manifest\.json"):
        write_run(tmp_path / "other", tiny_files(), "", force=True)
    assert (tmp_path / "other" / "thesis.tex").exists()


def test_nothing_is_left_where_nothing_can_be_written(tmp_path: Path) -> None:
    """A file in the way ends in one clear error."""
    (tmp_path / "file").write_text("")
    with pytest.raises((InputError, UsageError)):
        write_run(tmp_path / "file" / "run", tiny_files(), "")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_run_is_recognised_byte_for_byte(tmp_path: Path) -> None:
    """One changed byte makes it another run."""
    files = tiny_files()
    write_run(tmp_path / "run", files, "")
    assert holds_same_run(tmp_path / "run", files)
    assert not holds_same_run(tmp_path / "run", {**files, "config.yaml": b"other"})
    assert not holds_same_run(tmp_path / "nowhere", files)


def test_a_directory_with_foreign_files_is_not_only_a_run(tmp_path: Path) -> None:
    """What a user added must not vanish by a repeated run."""
    write_run(tmp_path / "run", tiny_files(), "")
    assert is_whole_run(tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    assert not is_whole_run(tmp_path / "run")


@pytest.mark.parametrize("manifest", ["", "[]", "{}", '{"files": 3}', "[" * 10_000, "\x00"])
def test_a_broken_manifest_marks_no_run(tmp_path: Path, manifest: str) -> None:
    """Whatever stands in manifest.json, looking at it does not fail."""
    (tmp_path / "manifest.json").write_text(manifest)
    assert not is_whole_run(tmp_path)


def test_manifests_list_names_in_order() -> None:
    """The order in which files were made does not show."""
    one = manifest_of({"b": b"", "a": b""})
    other = manifest_of({"a": b"", "b": b""})
    assert json.dumps(one) == json.dumps(other)
