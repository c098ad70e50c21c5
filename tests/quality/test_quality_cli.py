"""The command ``quality``: what it prints, what it draws, and what it refuses."""

from __future__ import annotations

import csv
import io
import json

import pytest

from oasis_sim.cli.main import main
from tests.documented_columns import documented, header

pytest.importorskip("torch", reason="decoding needs the extra 'record'")

BASE = """
    --prompt-tokens 96 --steps 8 --block-size 8 --budget 24,128 --max-perplexity 1e9
    --trajectory text
"""


def arguments(model, text, *more: str) -> list[str]:
    """Return a command line for the tiny models; what is in `more` is not given before."""
    words = BASE.split()
    pairs = zip(words[::2], words[1::2], strict=True)
    usual = [word for option, value in pairs if option not in more for word in (option, value)]
    return ["quality", str(model), "--text", str(text), "--quiet", *usual, *more]


def test_json_holds_every_scheme_in_full(model_folder, text_file, capsys):
    """One case per budget, predictor and ratio; a whole budget without cap loses nothing."""
    more = ["--fetch-ratio", "0,all", "--predictor", "draft", "--predictor", "current"]
    assert 0 == main(arguments(model_folder("llama"), text_file, *more, "--format", "json"))
    found = json.loads(capsys.readouterr().out)
    cases = {
        (case["budget_tokens"], case["predictor"], case["fetch_ratio"]): case
        for case in found["cases"]
    }
    assert 8 == len(cases)
    assert ("skip2-2", 8, 96, "text") == (
        found["drafter"],
        found["steps"],
        found["prompt_tokens"],
        found["trajectory"]["source"],
    )
    whole = cases[128, "draft", 1.0]
    assert whole["kl"]["mean"] < 1e-9
    assert 1.0 == whole["top1_agreement"]["mean"]
    assert whole["attention_mass"]["mean"] == pytest.approx(1.0, abs=1e-6)
    assert (8, 8) == (
        whole["free_run"]["tokens"],
        whole["free_run"]["equal_before_first_difference"],
    )
    capped, fetching = cases[24, "draft", 0.0], cases[24, "draft", 1.0]
    assert 0.0 == capped["bytes_per_step"] < fetching["bytes_per_step"]
    assert capped["kl"]["mean"] > whole["kl"]["mean"]
    assert 0.0 == fetching["kl_above_most_fetching"]["mean"]
    difference = capped["kl"]["mean"] - fetching["kl"]["mean"]
    assert difference == pytest.approx(capped["kl_above_most_fetching"]["mean"])
    assert cases[24, "current", 1.0]["draft_accepted"] is None
    assert 1.0 == pytest.approx(cases[24, "current", 1.0]["overlap"]["mean"])
    for case in found["cases"]:
        assert [0, 1, 2, 3, 4] == [layer["layer"] for layer in case["layers"]]
        assert [1, 3, 4, 6] == [part["first_step"] for part in case["stretches"]]
        assert case["kl"]["low"] <= case["kl"]["mean"] <= case["kl"]["high"]
        mean = sum(layer["admitted"] for layer in case["layers"]) / 5
        blocks = mean * case["chosen_blocks"] * 5 * 2
        assert case["bytes_per_step"] == pytest.approx(blocks * 2 * 8 * 16 * 2)


def test_table_and_csv_say_what_was_decoded(model_folder, text_file, capsys):
    """A table is headed by model and text; CSV has one row per scheme, or per layer."""
    line = arguments(model_folder("llama"), text_file, "--fetch-ratio", "0.5", "--no-free-run")
    assert 0 == main(line)
    table = capsys.readouterr().out
    assert "keeper.txt: 96 tokens, 8 steps (text)" in table
    assert "circular block bootstrap" in table
    assert 0 == main([*line, "--format", "csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert ["24", "128"] == [row["budget_tokens"] for row in rows]
    assert "" == rows[0]["free_run_tokens"]
    assert 0 == main([*line, "--format", "csv", "--detail", "layers"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert 10 == len(rows)


def test_plot_is_written_and_the_same_each_time(model_folder, text_file, tmp_path, capsys):
    """The picture names its text; the same study gives the same bytes."""
    pytest.importorskip("matplotlib", reason="a plot needs the extra 'plot'")
    picture = tmp_path / "quality.svg"
    line = arguments(
        model_folder("llama"),
        text_file,
        *("--fetch-ratio", "0,0.5,all", "--no-free-run", "--plot", str(picture)),
    )
    assert 0 == main(line)
    first = picture.read_bytes()
    assert b"keeper.txt" in first
    assert b"fetch ratio" in first
    assert 2 == main(line)
    assert "--force" in capsys.readouterr().err
    assert 0 == main([*line, "--force"])
    assert first == picture.read_bytes()


def test_columns_are_documented(model_folder, text_file, capsys):
    """docs/columns.md has all of them, in their order."""
    line = arguments(model_folder("llama"), text_file, "--no-free-run", "--format", "csv")
    assert 0 == main([*line, "--index-fp8"])
    assert set(documented("quality --format csv")) == set(header(capsys.readouterr().out))
    for detail in ("layers", "stretches"):
        assert 0 == main([*line, "--detail", detail])
        assert documented(f"quality --detail {detail}") == header(capsys.readouterr().out)


def test_a_scheme_of_others_says_where_it_differs(model_folder, text_file, capsys):
    """InfiniGen decodes tokens over a part of its keys; what is not as its own is said."""
    line = arguments(
        model_folder("llama"),
        text_file,
        *("--scheme", "infinigen", "--budget", "16", "--block-size", "1", "--no-free-run"),
    )
    assert 0 == main(line)
    table = capsys.readouterr().out
    assert "scheme infinigen in blocks of 1;" in table
    assert "infinigen: the first full-attention layer" in table
    assert 0 == main([*line, "--format", "json"])
    (about,) = json.loads(capsys.readouterr().out)["schemes"]
    assert ("directions", 2) == (about["key_index"], len(about["approximations"]))


def several(model_folder, text_file, *more: str) -> list[str]:
    """Return a command line that compares schemes in their own units."""
    line = arguments(model_folder("llama"), text_file, *more, "--budget", "64", "--block-size", "8")
    place = line.index("--block-size")
    del line[place : place + 2]
    return [*line, "--scheme", "oasis,quest,hisparse,infinigen", "--fetch-ratio", "0.5,all"]


def test_several_schemes_share_text_and_reference(model_folder, text_file, capsys, tmp_path):
    """Each decodes as it does alone, along the same tokens; caps go to those that can have one."""
    line = several(model_folder, text_file, "--no-free-run")
    assert 0 == main([*line, "--format", "json", "--plot", str(tmp_path / "all.svg")])
    found = json.loads(capsys.readouterr().out)
    blocks = {each["name"]: each["block_tokens"] for each in found["schemes"]}
    assert {"oasis": 16, "quest": 16, "hisparse": 1, "infinigen": 1} == blocks
    cases = [(case["scheme"], case["fetch_ratio"]) for case in found["cases"]]
    capped = [(name, ratio) for name in ("oasis", "hisparse") for ratio in (0.5, 1.0)]
    assert [*capped[:2], ("quest", 1.0), *capped[2:], ("infinigen", 1.0)] == cases
    assert "oasis, K = 64, draft" in (tmp_path / "all.svg").read_text("utf-8")
    place = line.index("--scheme")
    for name, own in (("hisparse", line[place + 2 :]), ("quest", [])):
        assert 0 == main([*line[:place], "--scheme", name, *own, "--format", "json"])
        alone = json.loads(capsys.readouterr().out)["cases"]
        there = [case for case in found["cases"] if case["scheme"] == name]
        assert [case["kl"] for case in alone] == [
            {key: pytest.approx(value, abs=1e-9) for key, value in case["kl"].items()}
            for case in there
        ]
        for one, other in zip(alone, there, strict=True):
            assert one["overlap"] == other["overlap"]
            assert one["bytes_per_step"] == other["bytes_per_step"]


def test_tables_of_several_schemes_name_them(model_folder, text_file, capsys):
    """Table, CSV and details say which scheme a row is of; what does not apply is told."""
    line = [word for word in several(model_folder, text_file, "--no-free-run") if word != "--quiet"]
    assert 0 == main(line)
    out, err = capsys.readouterr()
    assert "schemes oasis in blocks of 16, quest in blocks of 16, hisparse" in out
    names = [row.split()[0] for row in out.splitlines() if " [" in row]
    assert ["oasis", "oasis", "quest", "hisparse", "hisparse", "infinigen"] == names[:6]
    assert "quest: --fetch-ratio 0.5,1.0 does not apply" in err
    assert "infinigen: --fetch-ratio 0.5,1.0 does not apply" in err
    assert 0 == main([*line, "--format", "csv", "--detail", "stretches"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {"oasis", "quest", "hisparse", "infinigen"} == {row["scheme"] for row in rows}


def test_a_budget_of_the_whole_text_is_told(model_folder, text_file, capsys):
    """It costs nothing because nothing is selected: a note says so, for that budget alone."""
    line = [word for word in arguments(model_folder("llama"), text_file) if word != "--quiet"]
    assert 0 == main([*line, "--no-free-run"])
    err = capsys.readouterr().err
    assert "a budget of 128 tokens holds all 104 of the text" in err
    assert "a budget of 24" not in err


def test_a_scheme_named_twice_is_refused(model_folder, text_file, capsys):
    """One message, before the model is read."""
    line = arguments(model_folder("llama"), text_file, "--scheme", "oasis,quest,oasis")
    assert 2 == main(line)
    assert "--scheme names oasis twice" in capsys.readouterr().err


def test_an_index_in_eight_bits_has_a_column(model_folder, text_file, capsys):
    """Table and CSV show how often exact keys choose alike."""
    line = arguments(model_folder("llama"), text_file, "--index-fp8", "--no-free-run")
    assert 0 == main(line)
    assert "as exact keys" in capsys.readouterr().out
    assert 0 == main([*line, "--format", "csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert all(0.5 < float(row["index_agreement"]) <= 1.0 for row in rows)


@pytest.mark.parametrize(
    ("more", "code", "problem"),
    [
        (["--fetch-ratio", "2"], 2, "no fetch ratio"),
        (["--fetch-ratio", "nan"], 2, "no fetch ratio"),
        (["--fetch-ratio", "0.1,"], 2, "no fetch ratio"),
        (["--fetch-ratio", "0.1,0.1"], 2, "twice"),
        (["--fetch-ratio", "1,all"], 2, "twice"),
        (["--budget", "many"], 2, "no number of tokens"),
        (["--budget", "0"], 2, "no number of tokens"),
        (["--budget", "000000000019999999999"], 2, "no number of tokens"),
        (["--step-caps", "000000000019999999999"], 2, "no number of blocks"),
        (["--step-caps", "9" * 5000], 2, "no number of blocks"),
        (["--budget", "20"], 2, "multiple"),
        (["--predictor", "guess"], 2, "guess"),
        (["--scheme", "dense"], 2, "reference itself"),
        (["--scheme", "nothing-like-it"], 3, "nothing-like-it"),
        (["--pool", "0.5"], 2, "pool_factor"),
        (["--steps", "3"], 2, "say nothing"),
        (["--steps", "-1"], 2, "steps: -1 is out of range"),
        (["--steps", "4000"], 3, "fewer than"),
        (["--drafter", "skip0-1"], 3, "cannot be left out"),
        (["--drafter", "prophet"], 3, "unknown drafter"),
        (["--max-perplexity", "1.5"], 3, "perplexity"),
        (["--trajectory", "wild"], 2, "unknown trajectory"),
        (["--bound-join", "sum"], 2, "unknown bound join"),
        (["--device", "toaster"], 3, "toaster"),
        (["--checkpoint", "pyproject.toml"], 3, "cannot be used"),
        (["--plot", "picture.gif"], 2, "picture format"),
        (["--plot", "no/such/place.svg"], 3, "no place for a file"),
        (["--block-size", "0"], 2, "block_tokens"),
        (["--step-caps", "1,x"], 2, "no number of blocks"),
        (["--step-caps", "1,2"], 2, "its cap is fixed"),
        (["--scheme", "oasis-adaptive", "--budget", "16"], 2, "--step-caps"),
        (["--scheme", "belady", "--fetch-ratio", "0.1", "--budget", "16"], 2, "future"),
    ],
)
def test_bad_options_are_one_line(model_folder, text_file, capsys, more, code, problem):
    """What cannot be is said in one line, with the exit code of its kind."""
    folder = model_folder("llama")
    capsys.readouterr()  # what the library says while it writes the model
    assert code == main(arguments(folder, text_file, *more))
    captured = capsys.readouterr()
    assert "" == captured.out
    assert problem in captured.err
    assert 1 == captured.err.count("\n")


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--step-caps", "1,2"], "its cap is fixed"),
        (["--trajectory", "text", "--question", "Why?"], "contradict each other"),
    ],
)
def test_options_that_do_not_fit_are_told_before_the_model_is_read(
    tmp_path, text_file, capsys, more, problem
):
    """Loading and prefill take a while: what the options say by themselves comes first."""
    assert 2 == main(arguments(tmp_path / "no-model", text_file, *more))
    assert problem in capsys.readouterr().err


def test_token_ids_are_the_text_that_they_stand_for(model_folder, text_file, tmp_path, capsys):
    """The same tokens by number give the same result; only the text's header differs."""
    from transformers import AutoTokenizer

    folder = model_folder("llama")
    ids = AutoTokenizer.from_pretrained(folder)(text_file.read_text())["input_ids"]
    (tmp_path / "ids.json").write_text(json.dumps(ids))
    capsys.readouterr()
    usual = arguments(folder, text_file, "--format", "json")
    assert 0 == main(usual)
    by_text = json.loads(capsys.readouterr().out)
    usual[usual.index("--text") : usual.index("--text") + 2] = ["--tokens", f"{tmp_path}/ids.json"]
    assert 0 == main(usual)
    by_ids = json.loads(capsys.readouterr().out)
    assert by_text["cases"] == by_ids["cases"]
    assert "ids.json" == by_ids["text"]["name"] != by_text["text"]["name"]


@pytest.mark.parametrize(
    ("more", "code", "problem"),
    [
        ([], 2, "name one of --text, --chats and --tokens"),
        (["--chats", "chats.jsonl"], 3, "no chat form"),
        (["--chats", "chats.jsonl", "--tokens", "ids"], 2, "name one of"),
        (["--chats", "chats.jsonl", "--chat-line", "2"], 3, "has 1 lines, not 2"),
        (["--tokens", "ids"], 3, "is no token of the model"),
    ],
)
def test_a_prompt_that_cannot_be_is_one_line(
    model_folder, tmp_path, monkeypatch, capsys, more, code, problem
):
    """As in `record`: one of text, chat and token ids, and what is wrong with it."""
    (tmp_path / "chats.jsonl").write_text('{"messages": [{"role": "user", "content": "why"}]}\n')
    (tmp_path / "ids").write_text("1 2 999999 3")
    folder = model_folder("llama")
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert code == main(["quality", str(folder), "--quiet", "--steps", "4", *more])
    error = capsys.readouterr().err
    assert problem in error
    assert 1 == error.count("\n")


def test_without_a_gpu_the_device_is_refused(model_folder, text_file, capsys):
    """No GPU is exit code 5, before anything is read."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert 5 == main(arguments(model_folder("llama"), text_file, "--device", "cuda"))
    assert "--device cpu" in capsys.readouterr().err


def test_a_missing_model_is_refused(text_file, tmp_path, capsys):
    """A path without a model is bad input."""
    assert 3 == main(arguments(tmp_path / "none.gguf", text_file))
    assert "none.gguf" in capsys.readouterr().err
