"""Reading files: capped, decompressed by content, and clear about what is wrong."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from oasis_sim.errors import InputError
from oasis_sim.fileio import inside, open_text_lines, read_bytes
from oasis_sim.units import GIB, MIB
from tests.strategies import file_contents

CAP = 64 * MIB


def packed(content: bytes, form: str) -> bytes:
    """Return the content plain, as gzip or as zstd."""
    if form == "gzip":
        return gzip.compress(content, mtime=0)
    return zstandard.compress(content) if form == "zstd" else content


FORMS = ("plain", "gzip", "zstd")
PACKED = FORMS[1:]


def written(directory: Path, content: bytes) -> Path:
    """Write a file whose name says nothing about its content."""
    path = directory / "content.bin"
    path.write_bytes(content)
    return path


@given(content=st.binary(max_size=3000), form=st.sampled_from(FORMS), parts=st.integers(1, 3))
def test_content_survives(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, form: str, parts: int
) -> None:
    """Any content is read back, from one or several compressed members, whatever the name."""
    if form == "plain" and content.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")):
        content = b"x" + content
    path = written(tmp_path_factory.mktemp("content"), packed(content, form) * parts)
    assert content * parts == read_bytes(path, CAP)


@pytest.mark.parametrize("form", PACKED)
@pytest.mark.parametrize("keep", [0.3, 0.9, 0.999])
def test_cut_off_stream_is_refused(tmp_path: Path, form: str, keep: float) -> None:
    """A compressed file without its end is never read as if it were whole."""
    raw = packed(os.urandom(5000), form)
    path = written(tmp_path, raw[: int(len(raw) * keep)])
    with pytest.raises(InputError, match="corrupt or cut off"):
        read_bytes(path, CAP)


@pytest.mark.parametrize("form", PACKED)
def test_second_member_cut_off_is_refused(tmp_path: Path, form: str) -> None:
    """Neither is one whose last member lacks its end."""
    raw = packed(b"first", form) + packed(b"second" * 20, form)[:-3]
    with pytest.raises(InputError, match="corrupt or cut off"):
        read_bytes(written(tmp_path, raw), CAP)


@pytest.mark.parametrize("form", PACKED)
def test_trailing_junk_is_refused(tmp_path: Path, form: str) -> None:
    """What follows the last member must be another one."""
    with pytest.raises(InputError, match="corrupt or cut off"):
        read_bytes(written(tmp_path, packed(b"content", form) + b"junk" * 5), CAP)


@pytest.mark.parametrize("form", PACKED)
def test_bomb_is_refused(tmp_path: Path, form: str) -> None:
    """A small file that unpacks to a gigabyte stops at the cap."""
    if form == "gzip":
        raw = gzip.compress(bytes(64 * MIB), 1, mtime=0) * 16
    else:
        raw = zstandard.compress(bytes(64 * MIB)) * 16
    path = written(tmp_path, raw)
    with pytest.raises(InputError, match=r"larger than 67\.1 MB"):
        read_bytes(path, CAP)


@pytest.mark.parametrize("form", FORMS)
def test_cap_is_exact(tmp_path: Path, form: str) -> None:
    """Content of exactly the cap is read; one byte more is refused."""
    path = written(tmp_path, packed(b"a" * 1000, form))
    assert 1000 == len(read_bytes(path, 1000))
    with pytest.raises(InputError, match="larger than 999 B"):
        read_bytes(path, 999)


def test_zero_padding_after_gzip_is_allowed(tmp_path: Path) -> None:
    """Some tools pad gzip files with zeros; gzip itself ignores them."""
    raw = packed(b"content", "gzip")
    assert b"content" == read_bytes(written(tmp_path, raw + bytes(600)), CAP)
    assert b"contentcontent" == read_bytes(written(tmp_path, raw + bytes(9) + raw), CAP)


def test_missing_directory_pipe_and_device(tmp_path: Path) -> None:
    """Whatever is not a regular file is refused at once."""
    os.mkfifo(tmp_path / "pipe")
    for path, said in (
        (tmp_path / "missing", "no such file"),
        (tmp_path, "is a directory"),
        (tmp_path / "pipe", "not a regular file"),
        (Path("/dev/zero"), "not a regular file"),
        (Path("a\0b"), "cannot be read"),
        (tmp_path / ("x" * 300), "cannot be read"),
    ):
        with pytest.raises(InputError, match=said):
            read_bytes(path, CAP)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(tmp_path: Path) -> None:
    """A file without read permission is named, with the reason."""
    path = written(tmp_path, b"x")
    path.chmod(0)
    with pytest.raises(InputError, match="Permission denied"):
        read_bytes(path, CAP)


def test_failing_device_is_an_input_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the operating system on opening becomes an InputError."""

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(InputError, match="Permission denied"):
        read_bytes(tmp_path / "file", CAP)


def test_name_with_control_characters_is_shown_harmless(tmp_path: Path) -> None:
    """The message holds no raw escape codes, even if the file's name does."""
    with pytest.raises(InputError) as caught:
        read_bytes(tmp_path / "a\x1b[2J\nb", CAP)
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)


def lines_of(path: Path) -> list[tuple[int, str]]:
    """Return all lines of a text file."""
    return list(open_text_lines(path, CAP, MIB))


TEXTS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0\ufeff"), max_size=9)
)


@given(lines=TEXTS, end=st.sampled_from(["\n", "\r\n"]), bom=st.booleans(), final=st.booleans())
def test_lines_survive(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: str, bom: bool, final: bool
) -> None:
    """LF or CRLF, mark or none, last line ended or not: the same numbered lines."""
    text = end.join(lines) + (end if final and lines else "")
    raw = (b"\xef\xbb\xbf" if bom else b"") + text.encode()
    path = written(tmp_path_factory.mktemp("lines"), raw)
    expected = lines if final or (lines and lines[-1]) else lines[:-1]
    assert list(enumerate(expected, 1)) == lines_of(path)


def test_unterminated_is_known(tmp_path: Path) -> None:
    """The reader tells a last line with its end from one without."""
    for raw, unterminated in ((b"a\nb", True), (b"a\nb\n", False), (b"", False)):
        lines = open_text_lines(written(tmp_path, raw), CAP)
        assert len(raw.split()) == len(list(lines))
        assert unterminated == lines.unterminated


def test_long_line_is_refused(tmp_path: Path) -> None:
    """A line above the cap is refused, with or without its end, before it is collected."""
    for end in (b"", b"\n"):
        path = written(tmp_path, b"ok\n" + b"x" * (3 * MIB) + end)
        with pytest.raises(InputError, match=r":2: line is longer than 1\.05 MB"):
            lines_of(path)


def test_gigabyte_line_is_refused_early(tmp_path: Path) -> None:
    """A sparse file of one gigabyte without a line end is refused after the first piece."""
    path = tmp_path / "long.jsonl"
    with path.open("wb") as file:
        file.truncate(GIB)
    with pytest.raises(InputError, match="longer than"):
        list(open_text_lines(path, 2 * GIB, MIB))


@pytest.mark.parametrize(
    ("raw", "said"),
    [(b"a\nb\0c\n", ":2: holds binary"), (b"\xff\xfea\0", "binary"), (b"\xe9\n", "not UTF-8")],
)
def test_binary_and_other_encodings_are_refused(tmp_path: Path, raw: bytes, said: str) -> None:
    """Only UTF-8 text is text."""
    with pytest.raises(InputError, match=said):
        lines_of(written(tmp_path, raw))


@given(file_contents(gzip.compress(b"line one\nline two\n" * 9, mtime=0)))
def test_fuzz_lines(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """Any content is lines or an InputError."""
    path = written(tmp_path_factory.mktemp("fuzz"), content)
    try:
        lines_of(path)
    except InputError as error:
        assert error.file is not None


@given(file_contents(zstandard.compress(b"line one\nline two\n" * 9)))
def test_fuzz_zstd(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """Any zstd content, however broken, is bytes or an InputError."""
    path = written(tmp_path_factory.mktemp("fuzz"), content)
    try:
        read_bytes(path, CAP)
    except InputError as error:
        assert error.file is not None


def test_inside_refuses_the_way_out(tmp_path: Path) -> None:
    """Names and links that leave a run directory are refused; links within it are not."""
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "secret").write_text("x")
    (run / "link").symlink_to(tmp_path / "secret")
    (run / "good").write_text("x")
    (run / "also").symlink_to("good")
    for name in ("link", "../secret", "/etc/passwd"):
        with pytest.raises(InputError, match="leads out"):
            inside(run, name)
    assert run / "also" == inside(run, "also")
