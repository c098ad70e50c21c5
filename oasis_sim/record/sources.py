"""Prompts that are no plain text: chats of a JSONL file, and token ids."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oasis_sim.errors import InputError
from oasis_sim.fileio import loads_json, printable, read_bytes
from oasis_sim.record.prompt import Prompt, load_text
from oasis_sim.units import MIB

_CAP_BYTES = 256 * MIB
_BETWEEN = re.compile(r"[\s,]+")
_LARGEST_ID = (1 << 31) - 1


@dataclass(frozen=True)
class SourceChat:
    """Hold one chat of a file: messages with role and content, and facts for the header."""

    messages: tuple[dict[str, str], ...]
    header: dict[str, Any]
    file: str
    line: int


def load_chat(path: str | Path, licence: str, name: str | None = None, line: int = 1) -> SourceChat:
    """Read the chat in one line of a JSONL file (plain, .gz or .zst).

    A line is ``{"messages": [{"role": ..., "content": ...}, ...]}`` or that list alone. Raises
    InputError for a line that does not exist or holds no such chat.
    """
    text = load_text(path, licence, name)
    lines = text.content.splitlines()
    if not 1 <= line <= len(lines):
        raise InputError(
            f"has {len(lines)} lines, not {line}", file=text.file, fix="name a line with a chat"
        )
    value = loads_json(lines[line - 1], text.file, line).value
    found = value.get("messages") if isinstance(value, dict) else value
    if not isinstance(found, list) or not found or not all(map(_is_message, found)):
        raise InputError(
            "holds no chat",
            file=text.file,
            line=line,
            field="messages",
            fix='write {"messages": [{"role": "user", "content": "..."}]}',
        )
    header = {"name": text.name, "licence": text.licence, "sha256": text.sha256, "line": line}
    messages = tuple({"role": each["role"], "content": each["content"]} for each in found)
    return SourceChat(messages, header, text.file, line)


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(key), str) for key in ("role", "content")
    )


def chat_prompt(tokenizer: Any, chat: SourceChat, follow_tokens: int) -> Prompt:
    """Put a chat into the model's chat form, ending where the next answer begins.

    ``follow_tokens`` above 0 asks for a trajectory along the chat's own last answer: the prompt
    ends before it. Raises InputError when the model has no chat form, or the answer is missing or
    too short.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise InputError("the model has no chat form", field="chats", fix="use --text or --tokens")
    messages = list(chat.messages)
    if not follow_tokens:
        return Prompt(_chat_ids(tokenizer, chat, messages, answer=True), (), chat.header)
    if messages[-1]["role"] != "assistant" or len(messages) < 2:
        raise InputError(
            "the chat does not end with an answer to follow",
            file=chat.file,
            line=chat.line,
            fix="use --trajectory greedy or sample",
        )
    prompt = _chat_ids(tokenizer, chat, messages[:-1], answer=True)
    whole = _chat_ids(tokenizer, chat, messages, answer=False)
    following = whole[len(prompt) :]
    if whole[: len(prompt)] != prompt or len(following) < follow_tokens:
        raise InputError(
            f"the chat's last answer has {len(following)} tokens, fewer than {follow_tokens}",
            file=chat.file,
            line=chat.line,
            fix="use fewer steps, or --trajectory greedy or sample",
        )
    return Prompt(prompt, following[:follow_tokens], chat.header)


def _chat_ids(
    tokenizer: Any, chat: SourceChat, messages: list[dict[str, str]], *, answer: bool
) -> tuple[int, ...]:
    """Return the tokens of messages in the model's chat form, with the start of an answer."""
    from jinja2 import TemplateError

    try:
        form = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=answer)
    except TemplateError as error:
        raise InputError(
            f"does not fit the model's chat form ({printable(str(error), 120)})",
            file=chat.file,
            line=chat.line,
        ) from None
    return tuple(map(int, tokenizer(form, add_special_tokens=False)["input_ids"]))


def _is_id(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= 10 and int(word) <= _LARGEST_ID


def check_token_ids(prompt: Prompt, path: str | Path, vocab: int) -> None:
    """Raise InputError for the first id of a file, from 1 on, that a model's vocabulary lacks."""
    for number, token in enumerate((*prompt.tokens, *prompt.following), start=1):
        if token >= vocab:
            raise InputError(
                f"{token} is no token of the model",
                file=printable(path),
                field=f"id {number}",
                fix=f"use 0 to {vocab - 1}",
            )


def token_prompt(
    path: str | Path, licence: str, name: str | None, tokens: int | None, follow_tokens: int
) -> Prompt:
    """Read a prompt of token ids: whole numbers between blanks or commas, or a JSON list.

    The first ``tokens`` are the prompt (None: all but ``follow_tokens``). Raises InputError for
    anything else in the file, and when it is too short.
    """
    raw = read_bytes(path, _CAP_BYTES)
    shown = printable(path)
    text = raw.decode("ascii", "replace").strip().removeprefix("[").removesuffix("]").strip()
    words = [word for word in _BETWEEN.split(text) if word]
    wrong = next((word for word in words if not _is_id(word)), None)
    if wrong is not None or not words:
        seen = f"{printable(wrong, 30)!r} is no token id" if wrong else "holds no token ids"
        raise InputError(seen, file=shown, fix="write whole numbers between blanks or commas")
    ids = tuple(map(int, words))
    wanted = len(ids) - follow_tokens if tokens is None else tokens
    if wanted < 1 or wanted + follow_tokens > len(ids):
        raise InputError(
            f"has {len(ids)} ids, fewer than the {max(wanted, 1) + follow_tokens} needed",
            file=shown,
            fix="use more ids, a shorter prompt or fewer steps",
        )
    header = {
        "name": printable(name or Path(path).name),
        "licence": printable(licence),
        "sha256": hashlib.sha256(raw).hexdigest(),
        "form": "token ids",
    }
    return Prompt(ids[:wanted], ids[wanted : wanted + follow_tokens], header)
