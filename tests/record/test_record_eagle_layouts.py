"""EAGLE-3 heads laid out like the published ones, against a module of plain PyTorch.

Names, flags and number formats are those of SafeAILab's heads (``pytorch_model.bin`` in float16
without the embedding), SpecForge's, vLLM's speculators', NVIDIA's for gpt-oss and EAGLE 3.1's.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oasis_sim.errors import InputError

torch = pytest.importorskip("torch", reason="recording needs the extra 'record'")
from safetensors.torch import save_file  # noqa: E402
from torch import nn  # noqa: E402

from oasis_sim.record.eagle_files import load_eagle_head  # noqa: E402

HIDDEN, INNER, HEADS, KV_HEADS, DIM = 64, 96, 4, 2, 16
DRAFTS = 21
EPS, THETA = 1e-5, 10000.0
LAYER = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": DIM,
    "num_hidden_layers": 1,
    "max_position_embeddings": 2048,
    "rms_norm_eps": EPS,
    "tie_word_embeddings": False,
}


class Norm(nn.Module):
    """Root mean square norm with a weight."""

    def __init__(self, size: int) -> None:
        """Draw a weight near 1."""
        super().__init__()
        self.weight = nn.Parameter(1 + 0.2 * torch.randn(size))

    def forward(self, x):
        """Return the normed rows."""
        return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * self.weight


class Layer(nn.Module):
    """The one decoder layer, its parts named as the published heads name them."""

    def __init__(self, bias: bool) -> None:
        """Draw random weights."""
        super().__init__()
        sizes = {"q": (2 * HIDDEN, HEADS * DIM), "k": (2 * HIDDEN, KV_HEADS * DIM)}
        sizes |= {"v": sizes["k"], "o": (HEADS * DIM, HIDDEN)}
        self.self_attn = nn.ModuleDict(
            {f"{name}_proj": nn.Linear(*size, bias=bias) for name, size in sizes.items()}
        )
        shapes = {"gate": (HIDDEN, INNER), "up": (HIDDEN, INNER), "down": (INNER, HIDDEN)}
        self.mlp = nn.ModuleDict(
            {f"{name}_proj": nn.Linear(*size, bias=False) for name, size in shapes.items()}
        )
        self.input_layernorm, self.hidden_norm = Norm(HIDDEN), Norm(HIDDEN)
        self.post_attention_layernorm = Norm(HIDDEN)

    def attend(self, pair, window: int | None):
        """Return the attention's output of whole rows, one head after the other."""
        count, half = len(pair), DIM // 2
        angle = torch.arange(count)[:, None] * THETA ** (-torch.arange(half) / half)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        parts = {}
        for name in "qkv":
            value = self.self_attn[f"{name}_proj"](pair).view(count, -1, DIM)
            first, second = value[..., :half], value[..., half:]
            turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
            parts[name] = value if name == "v" else turned
        distance = torch.arange(count)[:, None] - torch.arange(count)
        seen = (distance >= 0) & (distance < (window or count))
        out = []
        for head in range(HEADS):
            group = head * KV_HEADS // HEADS
            scores = parts["q"][:, head] @ parts["k"][:, group].T / DIM**0.5
            shares = scores.masked_fill(~seen, -torch.inf).softmax(-1)
            out.append(shares @ parts["v"][:, group])
        return self.self_attn["o_proj"](torch.cat(out, dim=-1))


class PlainHead(nn.Module):
    """A head as a module: its state has the names of the published files."""

    def __init__(self, vocab: int, flags: dict) -> None:
        """Draw random weights and a random draft vocabulary."""
        super().__init__()
        self.flags = flags
        self.embed_tokens = nn.Embedding(vocab, HIDDEN)
        self.fc = nn.Linear(3 * HIDDEN, HIDDEN, bias=False)
        self.midlayer = Layer(flags.get("attention_bias", False))
        self.norm = Norm(HIDDEN)
        self.lm_head = nn.Linear(HIDDEN, DRAFTS, bias=False)
        if flags.get("norm_before_fc"):
            self.input_norm = Norm(3 * HIDDEN)
        if flags.get("fc_norm"):
            self.fc_norm = nn.ModuleList([Norm(HIDDEN) for _ in range(3)])
        self.tokens = torch.randperm(vocab)[:DRAFTS].sort().values
        self.register_buffer("d2t", self.tokens - torch.arange(DRAFTS))
        self.register_buffer("t2d", torch.zeros(vocab, dtype=torch.bool))
        self.t2d[self.tokens] = True

    def forward(self, tokens, taps):
        """Return logits over the draft's vocabulary: tokens [Q], taps [Q, 3 * hidden]."""
        if "norm_before_fc" in self.flags:
            taps = self.input_norm(taps)
        if "fc_norm" in self.flags:
            parts = [
                norm(part) for norm, part in zip(self.fc_norm, taps.split(HIDDEN, -1), strict=True)
            ]
            taps = torch.cat(parts, dim=-1)
        layer, joined = self.midlayer, self.fc(taps)
        normed = layer.hidden_norm(joined)
        pair = torch.cat([layer.input_layernorm(self.embed_tokens(tokens)), normed], dim=-1)
        state = normed if "norm_before_residual" in self.flags else joined
        state = state + layer.attend(pair, self.flags.get("sliding_window"))
        inner = layer.post_attention_layernorm(state)
        gated = nn.functional.silu(layer.mlp["gate_proj"](inner)) * layer.mlp["up_proj"](inner)
        return self.lm_head(self.norm(state + layer.mlp["down_proj"](gated)))


def safeailab(head: PlainHead, folder: Path) -> None:
    """Write float16 weights as PyTorch packs them, without the embedding."""
    config = {**LAYER, "architectures": ["LlamaForCausalLM"], "draft_vocab_size": DRAFTS}
    config |= {"rope_scaling": None, "torch_dtype": "float16", "vocab_size": len(head.t2d)}
    (folder / "config.json").write_text(json.dumps(config))
    state = {k: v.half() if v.is_floating_point() else v for k, v in head.state_dict().items()}
    del state["embed_tokens.weight"]
    torch.save(state, folder / "pytorch_model.bin")


def specforge(head: PlainHead, folder: Path, **more: object) -> None:
    """Write bfloat16 weights with the embedding, and the layers by their outputs."""
    config = {**LAYER, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": DRAFTS}
    config |= {"rope_theta": THETA, "sliding_window": None, "use_sliding_window": False}
    eagle = {"eagle_aux_hidden_state_layer_ids": [1, 1, 1], "use_aux_hidden_state": True}
    (folder / "config.json").write_text(json.dumps({**config, "eagle_config": eagle, **more}))
    state = {k: v.bfloat16() if v.is_floating_point() else v for k, v in head.state_dict().items()}
    save_file(state, folder / "model.safetensors")


def nvidia(head: PlainHead, folder: Path) -> None:
    """Write the norm before ``fc`` where NVIDIA's heads for gpt-oss say so, and no layers."""
    flags = {
        "eagle_aux_hidden_state_layer_ids": [],
        "use_aux_hidden_state": True,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
        "norm_before_fc": True,
    }
    specforge(head, folder, eagle_config=flags)


def speculators(head: PlainHead, folder: Path) -> None:
    """Write the nested configuration of vLLM's speculators, names with ``layers.0``."""
    flags = {key: value for key, value in head.flags.items() if key != "sliding_window"}
    layer = {**LAYER, "rope_parameters": {"rope_type": "default", "rope_theta": THETA}}
    if "sliding_window" in head.flags:
        window = head.flags["sliding_window"]
        layer |= {"layer_types": ["sliding_attention"], "sliding_window": window}
    config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": DRAFTS,
        "eagle_aux_hidden_state_layer_ids": [2, 2, 2],
        "norm_output": True,
        "target_hidden_size": None,
        "transformer_layer_config": layer,
        **flags,
    }
    (folder / "config.json").write_text(json.dumps(config))
    state = {k.replace("midlayer", "layers.0"): v for k, v in head.state_dict().items()}
    del state["embed_tokens.weight"]
    save_file(state, folder / "model.safetensors")


def vllm(head: PlainHead, folder: Path) -> None:
    """Write the names that vLLM's own module has."""
    specforge(head, folder, attention_bias=True)
    state = {k.replace("midlayer", "layers.0"): v for k, v in head.state_dict().items()}
    state["draft_id_to_target_id"] = state.pop("d2t")
    apart = {"draft_id_to_target_id", "t2d", "lm_head.weight"}
    renamed = {k if k in apart else f"model.{k}": v for k, v in state.items()}
    save_file(renamed, folder / "model.safetensors")


BEFORE_FC = {"norm_before_residual": True, "norm_before_fc": True}
LAYOUTS = {
    "safeailab": (safeailab, torch.float16, {}),
    "specforge": (specforge, torch.bfloat16, {}),
    "nvidia": (nvidia, torch.bfloat16, {"norm_before_fc": True}),
    "speculators": (speculators, torch.float32, BEFORE_FC),
    "speculators-window": (speculators, torch.float32, {**BEFORE_FC, "sliding_window": 3}),
    "eagle-3.1": (speculators, torch.float32, {"norm_before_residual": True, "fc_norm": True}),
    "vllm": (vllm, torch.float32, {"attention_bias": True}),
}


def make_head(name: str, model, folder: Path):
    """Write a random head in a layout; return it with the values that the files hold."""
    write, dtype, flags = LAYOUTS[name]
    torch.manual_seed(3)
    head = PlainHead(model.vocab, flags).to(dtype).float().eval()
    if name in {"safeailab", "speculators", "speculators-window", "eagle-3.1"}:
        head.embed_tokens.weight.data = model.module.get_input_embeddings().weight.data
    folder.mkdir()
    write(head, folder)
    return head


@pytest.mark.parametrize("name", LAYOUTS)
def test_heads_in_published_layouts_give_a_plain_modules_logits(name, tiny_model, tmp_path):
    """Logits agree, chunk by chunk, and the likeliest token is the one that t2d counts to."""
    model = tiny_model("llama")
    plain = make_head(name, model, tmp_path / "head")
    head, _ = load_eagle_head(tmp_path / "head", model)
    assert (1, 1, 1) == head.shape.taps
    generator = torch.Generator().manual_seed(9)
    taps = 3 * torch.randn(12, 3 * HIDDEN, generator=generator) + 1
    tokens = torch.randint(model.vocab, (12,), generator=generator)
    store = head.new_store(12)
    with torch.no_grad():
        expected = plain(tokens, taps)
        states = torch.cat(
            [
                head.states(tokens[part], taps[part], torch.arange(12)[part], store)
                for part in (slice(0, 5), slice(5, 12))
            ]
        )
        torch.testing.assert_close(head.logits(states), expected, atol=1e-5, rtol=1e-4)
    likeliest = plain.t2d.nonzero()[:, 0][expected.argmax(-1)].tolist()
    assert likeliest == head.likeliest(states)
    assert len(set(likeliest)) > 3


def test_norms_before_fc_are_not_left_out(tiny_model, tmp_path):
    """The same weights with and without the norm draft differently: the flag is read."""
    model = tiny_model("llama")
    plain = make_head("nvidia", model, tmp_path / "head")
    plain.flags = {}
    head, _ = load_eagle_head(tmp_path / "head", model)
    taps = 9 * torch.rand(12, 3 * HIDDEN, generator=torch.Generator().manual_seed(9))
    tokens = torch.arange(12)
    with torch.no_grad():
        states = head.states(tokens, taps, tokens, head.new_store(12))
        assert not torch.allclose(head.logits(states), plain(tokens, taps), atol=0.1)


def change(folder: Path, config: dict, weights: dict) -> None:
    """Change a folder's configuration and add, replace or (None) drop weights."""
    from safetensors.torch import load_file

    place = folder / "config.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), **config}))
    state = {**load_file(folder / "model.safetensors"), **weights}
    kept = {name: value for name, value in state.items() if value is not None}
    save_file(kept, folder / "model.safetensors")


NORM, FLAGS = torch.ones(DIM), {"use_last_layernorm": False}
OTHERS = {
    "qk-norm": ({}, {"midlayer.self_attn.q_norm.weight": NORM}, "not read: midlayer.self_attn.q_n"),
    "second layer": ({}, {"layers.1.mlp.up_proj.weight": NORM}, "not read: layers.1.mlp"),
    "scales": ({}, {"fc.weight_scale": torch.ones(1)}, "not read: fc.weight_scale"),
    "norm unsaid": ({}, {"input_norm.weight": NORM}, "not read: input_norm"),
    "norm missing": ({"norm_before_fc": True}, {}, "lacks the weights input_norm.weight"),
    "norms missing": ({"fc_norm": True}, {}, r"lacks the weights fc_norm.0.weight, fc_norm.1"),
    "both norms": ({"fc_norm": True, "norm_before_fc": True}, {}, "fc_norm: excludes"),
    "norm's size": (
        {"norm_before_fc": True},
        {"input_norm.weight": NORM},
        r"\(16,\), not \(192,\)",
    ),
    "EAGLE 1": ({}, {"midlayer.hidden_norm.weight": None}, "lacks the weights midlayer.hidden_n"),
    "states": ({"eagle_config": {"use_aux_hidden_state": False}}, {}, "use_aux_hidden_state: is F"),
    "no last norm": ({"eagle_config": FLAGS}, {}, "use_last_layernorm: is False"),
    "quantised": ({"quantization_config": {"bits": 4}}, {}, "quantises"),
    "mixed layers": ({"layer_types": ["linear_attention"]}, {}, "layer_types: is not one layer"),
    "no window": ({"layer_types": ["sliding_attention"]}, {}, "sliding_window"),
    "vocabulary": ({"draft_vocab_size": 20}, {}, "draft_vocab_size: is 20, lm_head has 21 rows"),
    "no d2t": ({}, {"d2t": None}, "d2t: is missing, with 21 draft tokens"),
    "floats": ({}, {"d2t": torch.zeros(DRAFTS)}, "d2t: is no list of 21 whole numbers"),
    "absolute": ({}, {"d2t": torch.arange(DRAFTS)}, "d2t: names other tokens than t2d"),
    "embedding": ({}, {"embed_tokens.weight": torch.ones(9, HIDDEN)}, "holds 9 of the model's"),
    "nothing": (
        {"draft_vocab_size": None},
        {"lm_head.weight": torch.ones(0, HIDDEN), "d2t": torch.ones(0, dtype=torch.int64)},
        "lm_head: holds no tokens",
    ),
    "one token": ({}, {"d2t": -torch.arange(DRAFTS), "t2d": None}, "d2t: names a token twice"),
    "NaN": ({}, {"fc.weight": torch.full((HIDDEN, 3 * HIDDEN), torch.nan)}, "fc.weight holds num"),
    "whole numbers": ({}, {"norm.weight": torch.ones(HIDDEN).int()}, "norm.weight holds torch.i"),
    "two names": ({}, {"layers.0.hidden_norm.weight": NORM}, "hidden_norm.weight a second time"),
    "no frequencies": ({"rope_theta": 0}, {}, "infinite or undefined frequencies"),
    "feed-forward": ({}, {"midlayer.mlp.down_proj.weight": NORM}, "down_proj.weight is"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_heads_of_other_kinds_are_refused(kind, tiny_model, tmp_path):
    """What would change the draft and is not computed is named, not left out silently."""
    model = tiny_model("llama")
    make_head("specforge", model, tmp_path / "head")
    config, weights, problem = OTHERS[kind]
    change(tmp_path / "head", config, weights)
    with pytest.raises(InputError, match=problem):
        load_eagle_head(tmp_path / "head", model)


PACKED = {
    "deeper": {"state": {"fc.weight": NORM}, "step": 3},
    "list": ["fc", "norm"],
    "tensor": torch.ones(3, 2),
    "numbers for names": {1: NORM},
    "sparse": {"fc.weight": NORM.to_sparse()},
    "meta": {"fc.weight": torch.ones(3, device="meta")},
}


@pytest.mark.parametrize("kind", PACKED)
def test_packed_files_of_other_things_are_refused(kind, tiny_model, tmp_path):
    """A training run's checkpoint, whose weights lie deeper, and what else can be packed."""
    model = tiny_model("llama")
    make_head("safeailab", model, tmp_path / "head")
    torch.save(PACKED[kind], tmp_path / "head" / "pytorch_model.bin")
    with pytest.raises(InputError, match="holds other things than weights"):
        load_eagle_head(tmp_path / "head", model)


@pytest.mark.parametrize("content", [b"", b"junk" * 9, b"\x80\x04N.", b"PK\x03\x04"])
def test_broken_packed_files_are_refused(content, tiny_model, tmp_path):
    """An empty, foreign or cut file is an InputError that names it."""
    model = tiny_model("llama")
    make_head("safeailab", model, tmp_path / "head")
    (tmp_path / "head" / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(InputError, match=r"pytorch_model.bin: (cannot be read|holds other)"):
        load_eagle_head(tmp_path / "head", model)
