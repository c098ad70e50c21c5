"""Text from files and names, made harmless for a terminal."""

from __future__ import annotations

LONGEST_TEXT = 2_000


def plain(text: str) -> str:
    """Return text on one line without control characters, cut when it is very long.

    Characters that do not print (terminal escapes, newlines, direction overrides, surrogates)
    become their escaped spelling, so that nothing in a file can move the cursor or hide.
    """
    shown = text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "..."
    return "".join(
        character if character.isprintable() else escape(character) for character in shown
    )


def escape(character: str) -> str:
    """Spell one character as an escape sequence that is plain ASCII.

    A byte of a file's name that is no text reaches Python as a surrogate; it is spelt as the byte.
    """
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def one_line(text: str) -> str:
    """Return text with line breaks and tabs as single spaces and the rest made plain."""
    parts = (part.strip() for line in text.splitlines() for part in line.split("\t"))
    return plain(" ".join(part for part in parts if part))


def csv_cell(text: str) -> str:
    """Return text that no spreadsheet takes for a formula.

    A leading ``=``, ``+``, ``-`` or ``@`` gets an apostrophe in front, as spreadsheets expect.
    """
    shown = plain(text)
    return f"'{shown}" if shown.lstrip()[:1] in ("=", "+", "-", "@") else shown


def counted(value: int, noun: str) -> str:
    """Return a whole number with its noun, which takes an s unless there is one of it."""
    return f"{value:,} {noun}{'' if value == 1 else 's'}"
