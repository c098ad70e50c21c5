"""The configuration of an EAGLE-3 head, checked: shape, rotary embedding, activation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oasis_sim.errors import InputError
from oasis_sim.fileio import Document, Fields, load_json, printable
from oasis_sim.record.eagle import EagleShape
from oasis_sim.record.place import as_facts

_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
_NORMS = {
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "use_aux_hidden_state": True,
}
"""What ModelOpt writes of the layout, and the only one that is EAGLE-3's."""
_ROPE = ("rope_theta", "rope_scaling", "rope_parameters")
_MOST_POSITIONS = 1 << 24


def load_facts(file: Path) -> dict[str, Any]:
    """Read a head's config.json.

    The nested layer of vLLM's speculators and the nested ``eagle_config`` are lifted up, apart from
    the latter's layers, which are counted differently.
    """
    facts = _given(load_json(file).value)
    layer, nested = (_given(facts.get(key)) for key in ("transformer_layer_config", "eagle_config"))
    nested.pop(_LAYER_IDS, None)
    return {**facts, **layer, **nested}


def _given(value: Any) -> dict[str, Any]:
    """Return the facts of a configuration that are not null."""
    return {key: fact for key, fact in as_facts(value).items() if fact is not None}


def read_shape(facts: Mapping[str, Any], layers: int, file: str) -> EagleShape:
    """Return the shape of a head on a target of so many layers.

    Raises InputError that lists every mistake of the configuration.
    """
    fields = Fields.of(Document(dict(facts), printable(file), {}))
    fields.keys()
    hidden = fields.integer("hidden_size", low=1, high=1 << 20)
    heads = fields.integer("num_attention_heads", low=1, high=4096)
    kv_heads = fields.integer("num_key_value_heads", heads, low=1, high=4096)
    if heads % max(kv_heads, 1):
        fields.mistake("num_key_value_heads", f"does not divide {heads} heads", None, None)
    _check_kind(facts, fields)
    shape = EagleShape(
        query_heads=heads,
        kv_heads=kv_heads,
        head_dim=fields.integer("head_dim", hidden // max(heads, 1), low=2, high=4096),
        norm_eps=fields.number("rms_norm_eps", 1e-6, low=0.0, high=1.0),
        taps=_taps(facts, layers),
        norm_before_residual=fields.flag("norm_before_residual", False),
        norm_before_fc=fields.flag("norm_before_fc", False),
        fc_norm=fields.flag("fc_norm", False),
        window=_window(facts, fields),
        draft_vocab=_draft_vocab(facts, fields),
    )
    if len(shape.taps) != 3 or not all(0 <= tap < layers for tap in shape.taps):
        problem = f"joins the outputs of layers {list(shape.taps)[:6]} of a model of {layers}"
        fields.mistake(_LAYER_IDS, problem, "use the head that belongs to the model", None)
    if shape.head_dim % 2:
        fields.mistake("head_dim", "is odd", "use an even number", None)
    fields.finish()
    return shape


def _check_kind(facts: Mapping[str, Any], fields: Fields) -> None:
    """Note what makes a head another kind than the one that is read."""
    if facts.get("num_hidden_layers", 1) != 1:
        fields.mistake("num_hidden_layers", "is not 1", "use a head of one decoder layer", None)
    if facts.get("quantization_config"):
        fix = "use the head's unquantised weights"
        fields.mistake("quantization_config", "quantises the weights", fix, None)
    for name, value in _NORMS.items():
        if fields.flag(name, value) != value:
            fields.mistake(name, f"is {not value}", "use an EAGLE-3 head", None)
    if facts.get("norm_before_fc") and facts.get("fc_norm"):
        fields.mistake("fc_norm", "excludes norm_before_fc", "keep the one of the training", None)


def _window(facts: Mapping[str, Any], fields: Fields) -> int | None:
    """Return the sliding window of a layer that ``layer_types`` says has one, in tokens."""
    kinds = facts.get("layer_types", ["full_attention"])
    if kinds == ["sliding_attention"]:
        return fields.integer("sliding_window", low=1, high=_MOST_POSITIONS)
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        fields.mistake("layer_types", "is not one layer of full or sliding attention", None, None)
    return None


def _draft_vocab(facts: Mapping[str, Any], fields: Fields) -> int | None:
    if facts.get("draft_vocab_size") is None:
        return None
    return fields.integer("draft_vocab_size", low=1, high=1 << 24)


def _taps(facts: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """Return the target's layers whose outputs are joined; none for what is no list of layers.

    SGLang's and SpecForge's nested ``eagle_config`` names layers by their outputs; the top-level
    list of vLLM's speculators names the layer after, as do the defaults 2, L / 2 and L - 3, which
    an empty list stands for as well.
    """
    nested = as_facts(facts.get("eagle_config")).get(_LAYER_IDS)
    empty: tuple[object, ...] = (None, [])
    before, given = (0, nested) if nested not in empty else (1, facts.get(_LAYER_IDS))
    if given in empty:
        given = [2, layers // 2, layers - 3]
    if not isinstance(given, list) or not all(type(layer) is int for layer in given):
        return ()
    return tuple(layer - before for layer in given)


def build_rotary(facts: Mapping[str, Any], shape: EagleShape, file: str) -> Any:
    """Return the library's rotary embedding for a head; raise InputError for one it refuses."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    fields = Fields.of(Document(dict(facts), printable(file), {}))
    fields.keys()
    positions = fields.integer("max_position_embeddings", 8192, low=1, high=_MOST_POSITIONS)
    fields.finish()
    try:
        config = LlamaConfig(
            hidden_size=int(facts["hidden_size"]),
            num_attention_heads=shape.query_heads,
            head_dim=shape.head_dim,
            max_position_embeddings=positions,
            **{name: facts[name] for name in _ROPE if name in facts},
        )
        rotary = LlamaRotaryEmbedding(config)
    except Exception as error:  # noqa: BLE001 - the library raises anything on odd settings
        problem = printable(str(error).split("\n")[0], 120)
        raise InputError(
            f"has a rotary embedding that the library refuses ({problem})", file=printable(file)
        ) from None
    if not bool(rotary.inv_freq.isfinite().all()):
        problem = "has a rotary embedding of infinite or undefined frequencies"
        raise InputError(problem, file=printable(file), fix="use the config.json of the training")
    return rotary


def find_activation(facts: Mapping[str, Any], file: str) -> Any:
    """Return the library's activation function; raise InputError for an unknown one."""
    from transformers.activations import ACT2FN

    name = facts.get("hidden_act", "silu")
    if not isinstance(name, str) or name not in ACT2FN:
        raise InputError(
            f"unknown activation {printable(name, 40)!r}", file=printable(file), field="hidden_act"
        )
    return ACT2FN[name]
