"""Tiny random-weight models, as folders that the recorder loads like real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

WORDS = [
    "the",
    "old",
    "keeper",
    "climbed",
    "stair",
    "after",
    "stair",
    "and",
    "lit",
    "lamp",
    "by",
    "lamp",
    "until",
    "all",
    "ships",
    "on",
    "dark",
    "water",
    "could",
    "see",
    "where",
    "rocks",
    "end",
    "harbour",
    "begins",
    "he",
    "wrote",
    "hour",
    "wind",
    "name",
    "of",
    "each",
    "passing",
    "ship",
    "in",
    "his",
    "book",
    "then",
    "slept",
    "while",
    "light",
    "turned",
    "above",
    "him",
    "as",
    "it",
    "had",
    "for",
    "sixty",
    "years",
]


KINDS: dict[str, dict[str, object]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 24},
    "mistral": {"sliding_window": 41},
    "mistral_full": {"model_type": "mistral", "sliding_window": None},
    "gemma3_text": {
        "head_dim": 24,
        "query_pre_attn_scalar": 24,
        "sliding_window": 41,
        "layer_types": [
            f"{kind}_attention" for kind in ("sliding", "sliding", "full", "sliding", "full")
        ],
    },
    "smollm3": {"no_rope_layer_interval": 2, "pad_token_id": 0},
    "olmo2": {"num_key_value_heads": 4},
    "phi3": {"pad_token_id": 0},
    "gpt_neox": {"num_key_value_heads": None},
    "gpt2": {"num_key_value_heads": None, "n_inner": 96},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64, "pad_token_id": 1},
    "granite": {"logits_scaling": 4.0},
    "falcon": {"num_key_value_heads": None},
    "bert": {"num_key_value_heads": None},
    "gpt_oss": {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gemma3_wide": {
        "model_type": "gemma3_text",
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 41,
        "layer_types": [f"{kind}_attention" for kind in ("sliding", "full") * 2]
        + ["full_attention"],
    },
    "draft": {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 32},
}
"""Tiny models by name: what differs from the common configuration below."""


def tiny_text(words: int) -> str:
    """Return a text of some words that repeats itself irregularly."""
    return " ".join(WORDS[(i * i // 3 + i) % len(WORDS)] for i in range(words))


def _save_tokenizer(folder: Path) -> int:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {word: i for i, word in enumerate(["<end>", "<unk>", *sorted(set(WORDS))])}
    inner = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", eos_token="<end>"
    ).save_pretrained(folder)
    return len(vocab)


def _save_model(folder: Path, kind: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    common: dict[str, object] = {
        "model_type": kind,
        "vocab_size": _save_tokenizer(folder),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.25,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "pad_token_id": None,
        "eos_token_id": 0,
    }
    config = AutoConfig.for_model(**{**common, **KINDS[kind]})
    torch.manual_seed(7)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory):
    """Return a function from a model type to a folder with a tiny model of that type."""
    made: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(f"tiny-{kind}")
            _save_model(made[kind], kind)
        return made[kind]

    return folder


@pytest.fixture(scope="session")
def tiny_model(model_folder):
    """Return a function from a model type to the loaded tiny model."""
    from oasis_sim.record import RecordedModel, load_recorded_model

    loaded: dict[str, RecordedModel] = {}

    def load(kind: str) -> RecordedModel:
        if kind not in loaded:
            loaded[kind] = load_recorded_model(model_folder(kind))
        return loaded[kind]

    return load


@pytest.fixture(scope="session")
def tiny_prompt():
    """Return a function from a model to a prompt of random tokens and those that follow it."""
    import numpy as np

    from oasis_sim.record import Prompt

    def make(model, tokens: int = 96, follow: int = 0) -> Prompt:
        ids = np.random.default_rng(11).integers(2, model.vocab, tokens + follow).tolist()
        header = {"name": "random", "licence": "CC0-1.0", "sha256": "0" * 64}
        return Prompt(tuple(ids[:tokens]), tuple(ids[tokens:]), header)

    return make
