"""Prompts from chats and token ids."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oasis_sim.errors import InputError
from oasis_sim.record import chat_prompt, load_chat, token_prompt

pytest.importorskip("jinja2", reason="chat forms need the extra 'record'")

CHAT = [
    {"role": "user", "content": "why is it dark"},
    {"role": "assistant", "content": "the lamp is out now"},
]


class ChatTokenizer:
    """Write each message as its role and its words, and number words by their length."""

    chat_template: str | None = "yes"

    def apply_chat_template(self, messages, tokenize: bool, add_generation_prompt: bool) -> str:
        """Join the messages; refuse roles that do not alternate, as real forms do."""
        import jinja2

        if any(m["role"] not in {"user", "assistant", "system"} for m in messages):
            raise jinja2.TemplateError("roles must alternate")
        parts = [f"{m['role']} {m['content']}" for m in messages]
        return " ".join([*parts, *(["assistant"] if add_generation_prompt else [])])

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        """Return one id per word."""
        assert not add_special_tokens
        return {"input_ids": [len(word) for word in text.split()]}


def write_chats(path, *chats) -> str:
    """Write a JSONL file."""
    path.write_text("\n".join(json.dumps(chat) for chat in chats) + "\n")
    return str(path)


def test_a_chat_is_a_prompt_up_to_the_next_answer(tmp_path):
    """Any line can be chosen; both spellings of a line are read; the header names the line."""
    file = write_chats(tmp_path / "chats.jsonl", {"messages": CHAT}, CHAT[:1])
    prompt = chat_prompt(ChatTokenizer(), load_chat(file, "CC0-1.0", line=2), 0)
    assert ((4, 3, 2, 2, 4, 9), ()) == (prompt.tokens, prompt.following)
    assert ("chats.jsonl", "CC0-1.0", 2) == tuple(
        prompt.header[key] for key in ("name", "licence", "line")
    )
    whole = chat_prompt(ChatTokenizer(), load_chat(file, "CC0-1.0"), 0)
    assert (4, 3, 2, 2, 4, 9, 3, 4, 2, 3, 3, 9) == whole.tokens


def test_a_chats_own_answer_can_be_followed(tmp_path):
    """The prompt ends where the last answer begins, and its tokens follow."""
    file = write_chats(tmp_path / "chats.jsonl", {"messages": CHAT})
    prompt = chat_prompt(ChatTokenizer(), load_chat(file, "CC0-1.0"), 4)
    assert ((4, 3, 2, 2, 4, 9), (3, 4, 2, 3)) == (prompt.tokens, prompt.following)
    with pytest.raises(InputError, match="has 5 tokens, fewer than 6"):
        chat_prompt(ChatTokenizer(), load_chat(file, "CC0-1.0"), 6)
    file = write_chats(tmp_path / "open.jsonl", CHAT[:1])
    with pytest.raises(InputError, match="does not end with an answer"):
        chat_prompt(ChatTokenizer(), load_chat(file, "CC0-1.0"), 2)


def test_the_librarys_own_chat_forms_are_used(model_folder, tmp_path):
    """A tokenizer of the library with a template: messages, roles and the answer's start."""
    transformers = pytest.importorskip("transformers", reason="needs the extra 'record'")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder("llama"))
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role == 'user' and 'keeper' or 'ship' }} {{ m.content }} "
        "{% endfor %}{% if add_generation_prompt %}ship{% endif %}"
    )
    file = write_chats(
        tmp_path / "chats.jsonl",
        [{"role": "user", "content": "the lamp"}, {"role": "assistant", "content": "by the water"}],
    )
    prompt = chat_prompt(tokenizer, load_chat(file, "CC0-1.0"), 2)
    words = tokenizer.convert_ids_to_tokens
    assert ["keeper", "the", "lamp", "ship"] == words(prompt.tokens)
    assert ["by", "the"] == words(prompt.following)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not valid JSON"),
        ("{}", "holds no chat"),
        ('{"messages": []}', "holds no chat"),
        ('{"messages": [{"role": "user"}]}', "holds no chat"),
        ('{"messages": [{"role": "user", "content": 3}]}', "holds no chat"),
        ('"hello"', "holds no chat"),
    ],
)
def test_lines_without_a_chat_are_refused(line, problem, tmp_path):
    """The message names file and line."""
    path = tmp_path / "chats.jsonl"
    path.write_text(f"{json.dumps(CHAT)}\n{line}\n")
    with pytest.raises(InputError, match=problem) as caught:
        load_chat(path, "CC0-1.0", line=2)
    assert (str(path), 2) == (caught.value.file, caught.value.line)


@given(content=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_file_is_a_chat_or_refused(content, tmp_path_factory):
    """Nothing else than a chat or an InputError comes out of any file."""
    path = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    path.write_bytes(content)
    try:
        chat = load_chat(path, "CC0-1.0")
    except InputError as error:
        assert str(path) == error.file
    else:
        assert chat.messages


def test_chats_that_cannot_be_used_are_refused(tmp_path):
    """A line that does not exist, a role that the form refuses, a model without a form."""
    strange = [{"role": "tool", "content": "x"}]
    file = write_chats(tmp_path / "chats.jsonl", CHAT, strange)
    for line in (0, 3):
        with pytest.raises(InputError, match="has 2 lines"):
            load_chat(file, "CC0-1.0", line=line)
    with pytest.raises(InputError, match="roles must alternate"):
        chat_prompt(ChatTokenizer(), load_chat(file, "CC0-1.0", line=2), 0)
    tokenizer = ChatTokenizer()
    tokenizer.chat_template = None
    with pytest.raises(InputError, match="no chat form"):
        chat_prompt(tokenizer, load_chat(file, "CC0-1.0"), 0)


@given(ids=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20), data=st.data())
def test_token_ids_are_read_in_every_spelling(ids, data, tmp_path_factory):
    """JSON, blanks, commas and lines give the same ids; prompt and continuation are cut."""
    path = tmp_path_factory.mktemp("ids") / "ids.txt"
    between = data.draw(st.sampled_from([" ", ", ", "\n", ",\n  ", "\t"]))
    text = json.dumps(ids) if data.draw(st.booleans()) else between.join(map(str, ids))
    path.write_bytes(gzip.compress(text.encode()) if data.draw(st.booleans()) else text.encode())
    follow = data.draw(st.integers(0, len(ids) - 1))
    prompt = token_prompt(path, "CC0-1.0", None, None, follow)
    assert (*ids,) == (*prompt.tokens, *prompt.following)
    assert follow == len(prompt.following)
    assert ("ids.txt", "token ids") == (prompt.header["name"], prompt.header["form"])


@given(content=st.binary(max_size=40))
def test_any_bytes_are_token_ids_or_refused(content, tmp_path_factory):
    """Nothing else than ids or an InputError comes out of any file."""
    path = tmp_path_factory.mktemp("ids") / "ids.txt"
    path.write_bytes(content)
    try:
        prompt = token_prompt(path, "CC0-1.0", None, None, 0)
    except InputError as error:
        assert str(path) == error.file
    else:
        assert all(0 <= token < 2**31 for token in prompt.tokens)


@pytest.mark.parametrize(
    ("text", "tokens", "problem"),
    [
        ("", None, "no token ids"),
        ("[]", None, "no token ids"),
        ("1 -2", None, "'-2' is no token id"),
        ("1 2.5", None, "no token id"),
        ("1 2 3", 4, "has 3 ids, fewer than the 4 needed"),
        ("1 2 3", 0, "fewer"),
        ("99999999999", None, "no token id"),
        ("2147483648", None, "no token id"),
    ],
)
def test_unusable_token_files_are_refused(text, tokens, problem, tmp_path):
    """What is no list of ids, or too short, is an InputError with the file's name."""
    path = tmp_path / "ids.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=problem) as caught:
        token_prompt(path, "CC0-1.0", None, tokens, 0)
    assert str(path) == caught.value.file
