"""Options that say what prompt a real model reads, for `record` and `quality` alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oasis_sim.cli.path_type import PATH
from oasis_sim.errors import UsageError

if TYPE_CHECKING:
    from oasis_sim.record import Prompt, RecordedModel, SourceChat, SourceText

_OPTIONS = (
    click.option("--text", type=PATH, help="UTF-8 text of the prompt (plain, .gz or .zst)."),
    click.option("--chats", type=PATH, help="JSONL of chats ({messages: [...]} per line) instead."),
    click.option("--chat-line", type=int, default=1, show_default=True, help="Line of the chat."),
    click.option("--tokens", type=PATH, help="Token ids instead: whole numbers, or a JSON list."),
    click.option("--question", help="Ask this about the text, in the model's chat form."),
    click.option(
        "--prompt-tokens", type=int, help="First tokens of the text to use.  [default: all of it]"
    ),
)


@dataclass(frozen=True)
class PromptSource:
    """Hold what the options say about the prompt; ``licence`` and ``text_name`` go to headers."""

    text: Path | None
    chats: Path | None
    chat_line: int
    tokens: Path | None
    question: str | None
    prompt_tokens: int | None
    text_name: str | None = None
    licence: str = "not stated"

    @classmethod
    def taken(cls, options: dict[str, Any], trajectory: str) -> PromptSource:
        """Take the options of a prompt out of a command's; UsageError when they contradict."""
        names = [field.name for field in fields(cls) if field.name in options]
        source = cls(**{name: options.pop(name) for name in names})
        if [source.text, source.chats, source.tokens].count(None) != 2:
            raise UsageError("name one of --text, --chats and --tokens")
        if source.question is not None and source.text is None:
            raise UsageError("--question goes with --text")
        if source.question is not None and trajectory == "text":
            raise UsageError("--trajectory text and --question contradict each other")
        return source

    def read(self, follow: int) -> SourceText | SourceChat | Prompt:
        """Read the file: a mistake there shows before the model is read.

        ``follow`` tokens are kept after the prompt, for a trajectory along the text.
        """
        from oasis_sim import record as recording

        if self.chats is not None:
            return recording.load_chat(self.chats, self.licence, self.text_name, self.chat_line)
        if self.tokens is not None:
            return recording.token_prompt(
                self.tokens, self.licence, self.text_name, self.prompt_tokens, follow
            )
        assert self.text is not None
        return recording.load_text(self.text, self.licence, self.text_name)

    def prompt(
        self, found: SourceText | SourceChat | Prompt, model: RecordedModel, follow: int
    ) -> Prompt:
        """Make the prompt that a text, a chat or token ids give with the model."""
        from oasis_sim import record as recording

        if isinstance(found, recording.SourceChat):
            return recording.chat_prompt(model.tokenizer, found, follow)
        if isinstance(found, recording.Prompt):
            recording.check_token_ids(found, str(self.tokens), model.vocab)
            return found
        request = recording.PromptRequest(tokens=self.prompt_tokens, question=self.question)
        return recording.build_prompt(model.tokenizer, found, request, follow)


def prompt_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that ``PromptSource.taken`` takes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
