"""Options, texts, drafters and progress: what is accepted and what is refused."""

from __future__ import annotations

import gzip
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oasis_sim.errors import InputError
from oasis_sim.record import (
    ProgressLines,
    PromptRequest,
    RecordOptions,
    SourceText,
    build_prompt,
    load_text,
)
from oasis_sim.record.options import parse_drafter, parse_layers

TEXT = SourceText("one two three four five", "five", "CC0-1.0", "0" * 64, "five.txt")


class WordTokenizer:
    """Number words by their length, as a stand-in for a model's tokenizer."""

    chat_template: str | None = "{{ messages }}"

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        """Return one id per word."""
        return {"input_ids": [len(word) for word in text.split()]}

    def decode(self, tokens, skip_special_tokens: bool = False) -> str:
        """Return words of the right lengths."""
        return " ".join("x" * token for token in tokens)

    def apply_chat_template(self, messages, tokenize: bool, add_generation_prompt: bool) -> str:
        """Wrap the message in one word before and one after."""
        return f"user {messages[0]['content']} assistant"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("all", (0, 1, 2, 3, 4, 5, 6)),
        ("3", (3,)),
        ("5,0,2-3", (0, 2, 3, 5)),
        ("0-6:3", (0, 3, 6)),
        (" 1 , 1-2 ", (1, 2)),
    ],
)
def test_layers_are_read(spec, expected):
    """Lists, ranges and strides give sorted layers, each once."""
    assert expected == parse_layers(spec, 7)


@pytest.mark.parametrize("spec", ["", "7", "0-7", "3-2", "0-6:0", "a", "-1", "1,,2", "1.5", "٣"])
def test_impossible_layers_are_refused(spec):
    """What is no list of the model's layers is an InputError that names the field."""
    with pytest.raises(InputError, match=r"^layers: ") as caught:
        parse_layers(spec, 7)
    assert caught.value.fix


@given(st.sets(st.integers(0, 40), min_size=1))
def test_layer_lists_round_trip(layers):
    """Written as a list, layers are read back."""
    spec = ",".join(map(str, sorted(layers, reverse=True)))
    assert tuple(sorted(layers)) == parse_layers(spec, 41)


def test_drafters_are_read():
    """The plain name takes the middle eighth, a range is taken with its end."""
    assert ("ngram", ()) == parse_drafter("ngram", 30)
    assert ("skip13-16", (13, 14, 15, 16)) == parse_drafter("skip", 30)
    assert ("skip1-1", (1,)) == parse_drafter("skip", 3)
    assert ("skip11-12", (11, 12)) == parse_drafter("skip11-12", 30)


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("eagle", 30),
        ("skip0-3", 30),
        ("skip3-29", 30),
        ("skip5-4", 30),
        ("skip-1-4", 30),
        ("skip", 2),
    ],
)
def test_impossible_drafters_are_refused(name, layers):
    """Unknown names, and layers that cannot be left out, are an InputError."""
    with pytest.raises(InputError, match=r"^drafter: "):
        parse_drafter(name, layers)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", 1),
        ("steps", 1 << 40),
        ("block_tokens", 0),
        ("stored_blocks", 0),
        ("stored_blocks", 65_536),
        ("draft_budget_tokens", 0),
        ("draft_budget_tokens", 100),
        ("sink_blocks", -1),
        ("recent_blocks", 0),
        ("chunk_tokens", 0),
        ("max_perplexity", float("nan")),
        ("max_perplexity", 1.0),
        ("temperature", float("nan")),
        ("temperature", 0.0),
        ("seed", -1),
        ("trajectory", "beam"),
        ("bound_join", "median"),
        ("mass_join", "min"),
        ("drafters", ("ngram", "ngram")),
    ],
)
def test_options_out_of_range_are_refused(field, value):
    """The message starts with the field and says what to use."""
    with pytest.raises(InputError) as caught:
        RecordOptions(**{field: value})
    assert field == caught.value.field
    assert caught.value.fix


def test_text_is_read_with_its_hash(tmp_path):
    """Plain and compressed texts read alike; CRLF and a byte-order mark go."""
    plain, packed = tmp_path / "a.txt", tmp_path / "b.txt.gz"
    plain.write_bytes(b"\xef\xbb\xbfone\r\ntwo")
    packed.write_bytes(gzip.compress(b"one\ntwo"))
    text = load_text(plain, "CC0-1.0")
    assert ("one\ntwo", "a.txt", "CC0-1.0") == (text.content, text.name, text.licence)
    assert "one\ntwo" == load_text(packed, "x", "named").content
    assert "named" == load_text(packed, "x", "named").name
    assert 64 == len(text.sha256)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "holds no text"),
        (b" \n\t", "holds no text"),
        (b"a\0b", "binary"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (gzip.compress(b"x" * 99)[:-9], "cut off"),
    ],
)
def test_unusable_texts_are_refused(tmp_path, content, problem):
    """Empty, binary, wrongly encoded and cut-off files are an InputError with the file's name."""
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=problem) as caught:
        load_text(path, "CC0-1.0")
    assert str(path) == caught.value.file


def test_missing_text_and_directory_are_refused(tmp_path):
    """A missing file and a directory are an InputError."""
    for path in (tmp_path / "none.txt", tmp_path):
        with pytest.raises(InputError):
            load_text(path, "CC0-1.0")


def test_prompt_is_the_start_of_the_text():
    """The prompt takes the first tokens; what follows is kept for a trajectory of the text."""
    prompt = build_prompt(WordTokenizer(), TEXT, PromptRequest(tokens=2), 3)
    assert ((3, 3), (5, 4, 4)) == (prompt.tokens, prompt.following)
    assert {"name": "five", "licence": "CC0-1.0", "sha256": "0" * 64} == dict(prompt.header)
    whole = build_prompt(WordTokenizer(), TEXT, PromptRequest(), 1)
    assert ((3, 3, 5, 4), (4,)) == (whole.tokens, whole.following)


@pytest.mark.parametrize(("tokens", "follow"), [(6, 0), (5, 1), (None, 5), (0, 0), (-3, 0)])
def test_prompts_beyond_the_text_are_refused(tokens, follow):
    """A text that is too short says how many tokens it has."""
    with pytest.raises(InputError):
        build_prompt(WordTokenizer(), TEXT, PromptRequest(tokens=tokens), follow)


def test_question_follows_the_text_in_chat_form():
    """The text is cut to its first tokens, the question comes after it, then the answer."""
    request = PromptRequest(tokens=3, question="and now seven?")
    prompt = build_prompt(WordTokenizer(), TEXT, request, 0)
    assert (4, 3, 3, 5, 3, 3, 6, 9) == prompt.tokens
    assert "and now seven?" == prompt.header["question"]


def test_question_needs_a_chat_form():
    """A model without a chat form cannot be asked."""
    tokenizer = WordTokenizer()
    tokenizer.chat_template = None
    with pytest.raises(InputError, match="no chat form"):
        build_prompt(tokenizer, TEXT, PromptRequest(question="why?"), 0)


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Say yes."""
        return True


def test_progress_on_a_terminal_moves_one_line_with_the_time_left():
    """Done parts and elapsed time give the time left; the end of a stage ends the line."""
    clock = iter([0.0, 10.0, 20.0])
    stream = Terminal()
    show = ProgressLines(stream, lambda: next(clock))
    for done in (0, 1, 4):
        show("prefill", done, 4)
    shown = [line.strip() for line in stream.getvalue().split("\r")]
    assert ["", "prefill: 0 of 4", "prefill: 1 of 4, 30 s left", "prefill: 4 of 4, 20.0 s"] == shown
    assert stream.getvalue().endswith("\n")


def test_progress_elsewhere_is_one_line_per_stage():
    """A log file gets no moving lines."""
    clock = iter([0.0, 1.0, 1.5, 3.5])
    stream = io.StringIO()
    show = ProgressLines(stream, lambda: next(clock))
    for stage in ("prefill", "decode"):
        show(stage, 0, 2)
        show(stage, 2, 2)
    assert "prefill: 2 of 2, 1.0 s\ndecode: 2 of 2, 2.0 s\n" == stream.getvalue()
