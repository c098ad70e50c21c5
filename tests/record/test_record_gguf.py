"""GGUF files are loaded a tensor at a time: the library's weights, without a second copy."""

from __future__ import annotations

import json
import re
import weakref
from pathlib import Path

import numpy as np
import pytest

from oasis_sim.errors import InputError
from oasis_sim.record import RecordOptions, load_recorded_model, record

torch = pytest.importorskip("torch", reason="recording needs the extra 'record'")
gguf = pytest.importorskip("gguf", reason="GGUF needs the extra 'record'")


LOOSE = {"block_tokens": 8, "draft_budget_tokens": 24, "max_perplexity": 1e9, "steps": 6}


def write_gguf(
    folder: Path, path: Path, *, eight_bit: bool = False, without: str = "", short: str = ""
) -> None:
    """Write the tiny Qwen2 model of a folder as a GGUF file, in float32 or, matrices, in Q8_0.

    The tensor ``without`` is left out; of the tensor ``short`` one row is kept.
    """
    gguf = pytest.importorskip("gguf", reason="GGUF needs the extra 'record'")
    pytest.importorskip("accelerate", reason="GGUF needs the extra 'record'")
    from safetensors.numpy import load_file

    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    tokens = ["<end>", *(chr(97 + i) if i < 26 else f"a{chr(71 + i)}" for i in range(60))]
    tokens = tokens[: config["vocab_size"]]
    writer.add_token_list(tokens)
    writer.add_token_types([3, *[1] * (len(tokens) - 1)])
    writer.add_token_merges([f"a {token[1]}" for token in tokens[27:]])
    writer.add_eos_token_id(0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, config["num_hidden_layers"])
    for name, whole in load_file(folder / "model.safetensors").items():
        known = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if known == without:
            continue
        values = whole[:1] if known == short else whole
        if eight_bit and values.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(known, gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(known, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def tiny_gguf(model_folder, tmp_path_factory) -> Path:
    """Return a GGUF file of the tiny Qwen2 model."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(model_folder("qwen2"), path)
    return path


def test_gguf_file_records_like_the_folder(tiny_gguf, tiny_model, tiny_prompt):
    """The same weights give the same trace from both kinds of file; both are identified."""
    folder_model, gguf_model = tiny_model("qwen2"), load_recorded_model(tiny_gguf)
    prompt = tiny_prompt(folder_model)
    options = RecordOptions(**LOOSE, ignore_eos=True)
    first = record(folder_model, prompt, options, name="tiny").trace
    second = record(gguf_model, prompt, options, name="tiny").trace
    np.testing.assert_array_equal(first.token, second.token)
    np.testing.assert_array_equal(first.use_order, second.use_order)
    np.testing.assert_array_equal(first.mass, second.mass)
    for drafter in first.drafters:
        np.testing.assert_array_equal(first.pred_order[drafter], second.pred_order[drafter])
    assert "tiny.gguf" == gguf_model.file
    assert {64} == {len(model.sha256) for model in (folder_model, gguf_model)}
    assert folder_model.sha256 != gguf_model.sha256


def test_cut_off_gguf_files_are_refused(tiny_gguf, tmp_path):
    """Wherever a file is cut, the error is an InputError with its name."""
    whole = tiny_gguf.read_bytes()
    for share in (0.0001, 0.01, 0.5, 0.99):
        path = tmp_path / "cut.gguf"
        path.write_bytes(whole[: max(4, int(len(whole) * share))])
        with pytest.raises(InputError) as caught:
            load_recorded_model(path)
        assert str(path) == caught.value.file


@pytest.fixture(scope="module")
def eight_bit_gguf(model_folder, tmp_path_factory):
    """Return a GGUF file of the tiny Qwen2 model in eight bits."""
    path = tmp_path_factory.mktemp("gguf8") / "tiny.gguf"
    write_gguf(model_folder("qwen2"), path, eight_bit=True)
    return path


def test_weights_are_those_of_the_library(eight_bit_gguf, capsys):
    """Unpacked one by one they are, bit for bit, what the library unpacks as a whole."""
    from transformers import AutoModelForCausalLM

    ours = load_recorded_model(eight_bit_gguf).module
    folder, name = eight_bit_gguf.parent, eight_bit_gguf.name
    theirs = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    capsys.readouterr()  # the library's progress bars
    expected = {**theirs.state_dict(), **dict(theirs.named_buffers())}
    found = {**ours.state_dict(), **dict(ours.named_buffers())}
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[key], found[key]) for key in expected)


def test_the_table_of_names_is_built_once(eight_bit_gguf, monkeypatch):
    """The library asks for it for every part of a model; afterwards it is the library's again."""
    import gguf

    build, built = gguf.get_tensor_name_map, []

    def counted(*asked):
        built.append(asked)
        return build(*asked)

    monkeypatch.setattr(gguf, "get_tensor_name_map", counted)
    load_recorded_model(eight_bit_gguf)
    assert 1 == len(built)
    assert gguf.get_tensor_name_map is counted


def test_one_unpacked_tensor_is_kept_at_a_time(eight_bit_gguf, monkeypatch):
    """When a tensor is unpacked, of all before only the last one may still be there."""
    made: list[weakref.ref] = []
    alive: list[int] = []
    unpack = gguf.dequantize

    def watched(data, kind):
        alive.append(sum(each() is not None for each in made))
        found = np.array(unpack(data, kind))
        made.append(weakref.ref(found))
        return found

    monkeypatch.setattr(gguf, "dequantize", watched)
    monkeypatch.setattr("oasis_sim.record.gguf_weights._PART_BYTES", 10 * 4 * 64)
    model = load_recorded_model(eight_bit_gguf)
    rows = -(-model.vocab // 10)
    assert len(made) == rows + len(gguf.GGUFReader(eight_bit_gguf).tensors) - 1
    assert max(alive) <= 1


def test_a_file_that_lacks_weights_is_refused(model_folder, tmp_path):
    """A model with a layer of chance is none."""
    path = tmp_path / "lacking.gguf"
    write_gguf(model_folder("qwen2"), path, without="blk.3.ffn_up.weight")
    with pytest.raises(InputError, match=r"no weights for model\.layers\.3\.mlp\.up_proj\.weight"):
        load_recorded_model(path)


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.3.ffn_up.weight", "output_norm.weight"])
def test_a_file_whose_weights_are_too_small_is_refused(name, model_folder, tmp_path):
    """A row is neither spread over the others nor are they left as memory was."""
    path = tmp_path / "short.gguf"
    write_gguf(model_folder("qwen2"), path, short=name)
    with pytest.raises(InputError, match=rf"{re.escape(name)} is \(1.*the model needs"):
        load_recorded_model(path)
