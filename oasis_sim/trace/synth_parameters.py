"""Parameters of synthetic attention traces, and named presets.

Scores live on a log2 scale: a block whose score is one higher has twice the attention mass.
``oasis_sim.trace.synth.synthesize(parameters, seed)`` turns a parameter set into a trace.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oasis_sim.errors import InputError
from oasis_sim.fileio import did_you_mean, printable

#: Largest context: block ids are 16-bit and 65535 means "no block".
MAX_BLOCKS = 65_000
#: Most scores (steps x heads x blocks) of one trace: about 4 GB while it is made.
MAX_CELLS = 5e7
MAX_AMOUNT = 1000
MAX_ROUNDING = 64
LEAST_STEPS = 2
LEAST_VOCAB = 2


@dataclass(frozen=True)
class SynthParameters:
    """Describe a synthetic trace: its shape, then how attention moves from step to step.

    Shape. ``context_tokens`` is the position of the first decode step. ``recorded_layers`` layers
    are spread evenly over ``model_layers``; ``recorded_heads`` of the ``kv_heads`` are generated.

    Profile (score of a block by its popularity rank r within a head):
    ``-profile_exponent * log2(1 + r / profile_knee)``. ``head_correlation`` is the share of the
    variance of popularity, and of all offsets, that the heads of a layer have in common.

    Movement. ``static_share`` of the heads exchange ``static_exchanges`` pairs of scores per step
    among their best 256 blocks (those of ``frozen_share`` none); ``exchange_pairs`` are swapped at
    a time, then the oldest return. In the others a block draws a
    new fast offset with the head's refresh probability, from ``volatile_refresh_low`` to
    ``volatile_refresh_high``. Both are multiplied by ``volatility``, the refreshing also by the
    step's own intensity. Slow offsets wander between knots ``drift_steps`` apart.

    Draft. Its query sees the scores of the next step plus noise on ``draft_noise_share`` of the
    blocks; a rejected draft's noise is ``rejected_noise_factor`` times larger.
    """

    name: str = "synthetic"
    # Model shape
    model_name: str = "Qwen3-8B"
    model_layers: int = 36
    kv_heads: int = 8
    query_heads: int = 32
    head_dim: int = 128
    vocab: int = 151_936
    # What is stored
    context_tokens: int = 12_288
    steps: int = 64
    recorded_layers: int = 12
    recorded_heads: int = 4
    block_tokens: int = 16
    stored_blocks: int = 256
    mass_rounding: int = 8
    # Profile of popularity
    profile_exponent: float = 1.6
    profile_knee: float = 3.0
    head_correlation: float = 0.5
    recency_boost: float = 6.0
    recency_blocks: float = 4.0
    sink_score: float = 3.0
    local_score: float = 1.0
    mass_noise: float = 0.4
    # Movement from step to step
    volatility: float = 1.0
    static_share: float = 0.25
    frozen_share: float = 0.021
    static_exchanges: float = 6.0
    exchange_reach: float = 4.0
    exchange_pairs: int = 32
    volatile_refresh_low: float = 0.2
    volatile_refresh_high: float = 0.6
    volatile_skew: float = 2.0
    layer_spread: float = 0.2
    burstiness: float = 0.3
    flicker: float = 1.0
    flicker_top_factor: float = 1.0
    flicker_volatile_gain: float = 0.0
    drift: float = 1.0
    drift_steps: int = 256
    # The draft's view
    draft_noise: float = 0.1
    draft_noise_share: float = 0.3
    draft_top_factor: float = 4.0
    draft_static_factor: float = 0.5
    draft_accepted_share: float = 0.8
    rejected_noise_factor: float = 2.0
    draft_noise_by_depth: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        _check_shape(self)
        _check_statistics(self)

    @property
    def final_blocks(self) -> int:
        """Return the blocks at the last step, the active one included."""
        return (self.context_tokens + self.steps) // self.block_tokens + 1

    def layer_ids(self) -> tuple[int, ...]:
        """Return the recorded layers' numbers: centres of equal slices of the model's depth."""
        count, total = self.recorded_layers, self.model_layers
        return tuple((2 * i + 1) * total // (2 * count) for i in range(count))

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters as plain JSON values; ``from_dict`` reads them back."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in dataclasses.asdict(self).items()
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SynthParameters:
        """Build parameters from a trace header's ``synthetic.parameters``.

        Raises InputError for an unknown name or a value of the wrong kind.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        known: dict[str, Any] = {}
        for key, value in values.items():
            if key not in fields:
                raise InputError(
                    f"parameter {printable(key, 60)} is not known{did_you_mean(key, list(fields))}",
                    field="synthetic.parameters",
                )
            known[key] = tuple(value) if isinstance(value, list) else value
        return cls(**known)

    def replace(self, **changes: Any) -> SynthParameters:
        """Return a checked copy with some parameters changed."""
        return dataclasses.replace(self, **changes)


_COUNTS = (
    "model_layers", "kv_heads", "query_heads", "head_dim", "vocab", "context_tokens", "steps",
    "recorded_layers", "recorded_heads", "block_tokens", "stored_blocks", "mass_rounding",
    "drift_steps", "exchange_pairs",
)  # fmt: skip
_SHARES = (
    "head_correlation", "static_share", "frozen_share",
    "volatile_refresh_low", "volatile_refresh_high", "draft_noise_share",
    "draft_accepted_share", "layer_spread",
)  # fmt: skip
_AMOUNTS = (
    "profile_exponent", "recency_boost", "mass_noise", "volatility", "volatile_skew",
    "static_exchanges", "burstiness", "flicker", "flicker_top_factor", "flicker_volatile_gain",
    "drift", "draft_noise", "draft_top_factor", "draft_static_factor", "rejected_noise_factor",
)  # fmt: skip


def _check_shape(p: SynthParameters) -> None:
    """Refuse shapes that cannot be generated."""
    for name in ("name", "model_name"):
        text: object = getattr(p, name)
        _require(p, name, isinstance(text, str) and text != "", "some text")
    for name in _COUNTS:
        value = getattr(p, name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        _require(p, name, whole and value >= 1, "a whole number of 1 or more")
    _require(p, "steps", p.steps >= LEAST_STEPS, f"at least {LEAST_STEPS}")
    _require(p, "recorded_layers", p.recorded_layers <= p.model_layers, "at most model_layers")
    _require(p, "recorded_heads", p.recorded_heads <= p.kv_heads, "at most kv_heads")
    _require(p, "query_heads", p.query_heads % p.kv_heads == 0, "a multiple of kv_heads")
    _require(p, "vocab", LEAST_VOCAB <= p.vocab < 2**31, f"from {LEAST_VOCAB} to 2^31 - 1")
    _require(p, "context_tokens", p.context_tokens >= p.block_tokens, "one block or more")
    _require(p, "context_tokens", p.final_blocks <= MAX_BLOCKS, f"at most {MAX_BLOCKS} blocks")
    cells = (p.steps + 1) * p.recorded_layers * p.recorded_heads * p.final_blocks
    _require(p, "steps", cells <= MAX_CELLS, f"fewer: {cells:.1e} scores exceed {MAX_CELLS:.0e}")
    _require(p, "mass_rounding", p.mass_rounding <= MAX_ROUNDING, f"at most {MAX_ROUNDING}")


def _check_statistics(p: SynthParameters) -> None:
    """Refuse statistics outside their ranges."""
    for name in _SHARES:
        _require(p, name, _within(getattr(p, name), 0, 1), "between 0 and 1")
    for name in _AMOUNTS:
        _require(p, name, _within(getattr(p, name), 0, MAX_AMOUNT), f"from 0 to {MAX_AMOUNT}")
    for name in ("sink_score", "local_score"):
        value = getattr(p, name)
        _require(p, name, _within(value, -MAX_AMOUNT, MAX_AMOUNT), f"within +-{MAX_AMOUNT}")
    _require(p, "exchange_reach", _within(p.exchange_reach, 1, MAX_AMOUNT), "1 or more")
    for name in ("profile_knee", "recency_blocks"):
        _require(p, name, _within(getattr(p, name), 1e-6, 1e6), "from 1e-6 to 1e6")
    ordered = p.volatile_refresh_low <= p.volatile_refresh_high
    _require(p, "volatile_refresh_low", ordered, "at most volatile_refresh_high")
    depth: object = p.draft_noise_by_depth
    usable = isinstance(depth, tuple) and len(depth) > 0
    usable = usable and all(_within(x, 0, MAX_AMOUNT) for x in p.draft_noise_by_depth)
    _require(p, "draft_noise_by_depth", usable, "a list of factors of 0 or more")


def _within(value: object, low: float, high: float) -> bool:
    """Tell whether a value is a number from low to high."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return low <= value <= high


def _require(p: SynthParameters, name: str, ok: bool, wanted: str) -> None:
    """Raise InputError that names the field unless ``ok``."""
    if not ok:
        raise InputError(f"is {getattr(p, name)!r}", field=name, fix=f"make it {wanted}")
