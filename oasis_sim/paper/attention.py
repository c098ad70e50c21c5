"""Models by what their attention reads, keeps and moves: GQA, MLA, DSA, NSA, hybrid, windowed.

For KV bytes, rooflines and memory only; the engine simulates grouped-query attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from oasis_sim.fileio import Document, Fields, load_yaml
from oasis_sim.model import ModelShape, load_model
from oasis_sim.scheme import Scheme

KINDS = ("gqa", "mla", "dsa", "nsa", "hybrid", "windowed")
NATIVE, HISPARSE = "native", "hisparse"
FILE = Path(__file__).with_name("attention_models.yaml")


@dataclass(frozen=True)
class AttentionModel:
    """Describe one model under one way of attending; all sizes are of the whole model.

    Layers that attend the whole context are `kv_layers`: `kv_bytes` and `index_bytes` per token of
    each. `selected_tokens` are attended (None: all). With KV in host memory `kept_tokens` stay
    in HBM and `moved_tokens` cross the link per layer and step (None: all that are attended).
    """

    name: str
    attention: str
    system: str
    gpus: int
    weight_bytes: float
    active_params: float
    kv_layers: int
    kv_bytes: int
    index_bytes: float = 0.0
    selected_tokens: int | None = None
    kept_tokens: int = 0
    moved_tokens: float | None = None
    window_layers: int = 0
    window_tokens: int = 0
    state_bytes: int = 0
    source: str = ""

    @property
    def kv_bytes_per_token(self) -> int:
        """Return the KV bytes that one more token of context adds, index keys apart."""
        return self.kv_layers * self.kv_bytes

    def fixed_bytes(self, context: int) -> int:
        """Return windows and state of one request: resident and read in every step."""
        window = min(context, self.window_tokens)
        return self.window_layers * window * self.kv_bytes + self.state_bytes

    def attended_tokens(self, context: int) -> int:
        """Return the tokens that a whole-context layer attends."""
        return context if self.selected_tokens is None else min(context, self.selected_tokens)

    def read_bytes(self, context: int) -> float:
        """Return the HBM bytes that attention and selection read per decoded token."""
        layer = self.attended_tokens(context) * self.kv_bytes + context * self.index_bytes
        return self.kv_layers * layer + self.fixed_bytes(context)

    def moved_bytes(self, context: int) -> float:
        """Return the bytes fetched per decoded token when the KV is in another tier."""
        attended = self.attended_tokens(context)
        outside = max(0, context - self.kept_tokens)
        moved = attended if self.moved_tokens is None else min(self.moved_tokens, outside)
        return self.kv_layers * moved * self.kv_bytes

    def resident_bytes(self, context: int, offloaded: bool) -> float:
        """Return the HBM bytes of one request, its KV here or (`offloaded`) in another tier."""
        tokens = min(context, self.kept_tokens) if offloaded else context
        layer = tokens * self.kv_bytes + context * self.index_bytes
        return self.kv_layers * layer + self.fixed_bytes(context)


def grouped_query(name: str, shape: ModelShape, gpus: int, scheme: Scheme) -> AttentionModel:
    """Return a GQA model, attending all (dense) or the blocks that a scheme chooses.

    Blocks move at the scheme's cap; index keys are the min/max keys of each block.
    """
    kv_bytes = shape.kv_bytes_per_token // shape.layers
    attended = scheme.attended_tokens_max if scheme.selects else None
    return AttentionModel(
        name=name,
        attention="gqa",
        system=scheme.name,
        gpus=gpus,
        weight_bytes=shape.weight_bytes,
        active_params=shape.active_params,
        kv_layers=shape.layers,
        kv_bytes=kv_bytes,
        index_bytes=kv_bytes / scheme.block_tokens if scheme.compressed_keys else 0.0,
        selected_tokens=attended,
        kept_tokens=attended or 0,
        moved_tokens=scheme.admission_cap * scheme.block_tokens if scheme.offload else None,
        source="config.json",
    )


def load_attention_models(
    schemes: tuple[Scheme, ...], path: Path = FILE
) -> tuple[AttentionModel, ...]:
    """Read the models; those with grouped queries come once per scheme."""
    return read_attention_models(load_yaml(path), schemes)


def read_attention_models(
    document: Document, schemes: tuple[Scheme, ...]
) -> tuple[AttentionModel, ...]:
    """Check a parsed file of models; raise InputError with every mistake in it."""
    top = Fields.of(document)
    top.integer("schema_version", low=1, high=1)
    found: list[AttentionModel] = []
    for fields in top.children("models"):
        name, gpus = fields.text("name"), fields.integer("gpus", low=1)
        if fields.has("shape"):
            shape = load_model(fields.text("shape"))
            found += [grouped_query(name, shape, gpus, scheme) for scheme in schemes]
        else:
            found.append(_read_native(fields, name, gpus))
    top.finish()
    return tuple(found)


def _read_native(fields: Fields, name: str, gpus: int) -> AttentionModel:
    """Read a model that attends in its own way."""
    selected = fields.integer("selected_tokens", low=1) if fields.has("selected_tokens") else None
    share = fields.number("moved_share", 1.0, low=0.0, high=1.0)
    return AttentionModel(
        name=name,
        attention=fields.text("attention", choices=KINDS),
        system=fields.text("system", NATIVE, choices=(NATIVE, HISPARSE)),
        gpus=gpus,
        weight_bytes=fields.number("weight_bytes", low=1.0),
        active_params=fields.number("active_params", low=1.0),
        kv_layers=fields.integer("kv_layers", low=1),
        kv_bytes=fields.integer("kv_bytes", low=1),
        index_bytes=fields.number("index_bytes", 0.0, low=0.0),
        selected_tokens=selected,
        kept_tokens=fields.integer("kept_tokens", 0, low=0),
        moved_tokens=None if selected is None else share * selected,
        window_layers=fields.integer("window_layers", 0, low=0),
        window_tokens=fields.integer("window_tokens", 0, low=0),
        state_bytes=fields.integer("state_bytes", 0, low=0),
        source=fields.text("source"),
    )
