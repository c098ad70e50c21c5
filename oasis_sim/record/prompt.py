"""The prompt of a recording: a text file or a question about it, as tokens, with its origin."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oasis_sim.errors import InputError
from oasis_sim.fileio import printable, read_bytes
from oasis_sim.units import MIB

_TEXT_CAP_BYTES = 64 * MIB


@dataclass(frozen=True)
class SourceText:
    """Hold a text, its name, its licence and the SHA-256 of its file."""

    content: str
    name: str
    licence: str
    sha256: str
    file: str


@dataclass(frozen=True)
class PromptRequest:
    """Say how to make a prompt of a text: its first tokens, and a question about them.

    ``tokens`` None takes the whole text. With ``question`` the text's tokens and the question
    become a user's message in the model's chat form.
    """

    tokens: int | None = None
    question: str | None = None


@dataclass(frozen=True)
class Prompt:
    """Hold the tokens of a prompt, those that follow it in the text, and header facts."""

    tokens: tuple[int, ...]
    following: tuple[int, ...]
    header: Mapping[str, Any]


def load_text(path: str | Path, licence: str, name: str | None = None) -> SourceText:
    """Read a UTF-8 text file (plain, .gz or .zst).

    Raises InputError when it cannot be read, is empty, or is not text.
    """
    raw = read_bytes(path, _TEXT_CAP_BYTES)
    shown = printable(path)
    try:
        content = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("is not UTF-8 text", file=shown, fix="save it as UTF-8") from None
    if "\0" in content:
        raise InputError("holds binary data", file=shown, fix="name a text file")
    if not content.strip():
        raise InputError("holds no text", file=shown, fix="name a text of some thousand words")
    return SourceText(
        content=content.replace("\r\n", "\n"),
        name=printable(name or Path(path).name),
        licence=printable(licence),
        sha256=hashlib.sha256(raw).hexdigest(),
        file=shown,
    )


def build_prompt(
    tokenizer: Any, text: SourceText, request: PromptRequest, follow_tokens: int
) -> Prompt:
    """Turn a text into a prompt by the model's tokenizer.

    ``follow_tokens`` are kept of the text after the prompt (for a trajectory that follows it).
    Raises InputError when the text is too short or the model has no chat form.
    """
    if request.tokens is not None and request.tokens < 1:
        raise InputError(f"{request.tokens} is out of range", field="prompt_tokens", fix="use 1 up")
    header = {"name": text.name, "licence": text.licence, "sha256": text.sha256}
    if request.question is not None:
        return _question_prompt(tokenizer, text, request, header)
    tokens = _encode(tokenizer, text, text.content)
    wanted = len(tokens) - follow_tokens if request.tokens is None else request.tokens
    if wanted < 1 or wanted + follow_tokens > len(tokens):
        raise InputError(
            f"has {len(tokens)} tokens, fewer than the {max(wanted, 1) + follow_tokens} needed",
            file=text.file,
            fix="use a longer text, a shorter prompt or fewer steps",
        )
    return Prompt(tokens[:wanted], tokens[wanted : wanted + follow_tokens], header)


def _question_prompt(
    tokenizer: Any, text: SourceText, request: PromptRequest, header: dict[str, Any]
) -> Prompt:
    """Put the text and a question into the model's chat form, ending where its answer begins."""
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(
            "the model has no chat form", field="question", fix="put the question into the text"
        )
    content = text.content
    if request.tokens is not None:
        tokens = _encode(tokenizer, text, content)
        if request.tokens > len(tokens):
            raise InputError(
                f"has {len(tokens)} tokens, fewer than the {request.tokens} asked for",
                file=text.file,
                fix="use a longer text or a shorter prompt",
            )
        content = str(tokenizer.decode(tokens[: request.tokens], skip_special_tokens=True))
    question = str(request.question).strip()
    message = {"role": "user", "content": f"{content.rstrip()}\n\n{question}"}
    chat = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
    ids = tokenizer(chat, add_special_tokens=False)["input_ids"]
    return Prompt(tuple(map(int, ids)), (), {**header, "question": question})


def _encode(tokenizer: Any, text: SourceText, content: str) -> tuple[int, ...]:
    tokens = tuple(map(int, tokenizer(content)["input_ids"]))
    if not tokens:
        raise InputError("gives no tokens", file=text.file, fix="check the model's tokenizer")
    return tokens
