"""Named parameter sets of synthetic traces.

``aime`` was fitted by benchmarks/fit_synthetic_trace.py to the statistics published for OasisKV
(arXiv 2608.08097); the others change it in one direction and are calibrated to nothing.
"""

from __future__ import annotations

from oasis_sim.errors import InputError
from oasis_sim.fileio import did_you_mean, printable
from oasis_sim.trace.synth_parameters import SynthParameters

AIME_SEED = 1
#: Agreement of the draft's top 128 blocks with the true next set by layer of Qwen3-8B: read off
#: Figure 6 of arXiv 2608.08097 to about 0.1 point.
FIGURE_6_AGREEMENT_PCT = (
    99.70,
    99.23,
    99.05,
    98.78,
    99.02,
    98.99,
    99.13,
    98.96,
    98.99,
    98.71,
    99.02,
    98.89,
    98.76,
    98.67,
    98.86,
    98.62,
    98.55,
    98.38,
    98.31,
    98.45,
    98.28,
    98.31,
    98.56,
    98.43,
    98.31,
    98.74,
    98.45,
    98.78,
    98.69,
    98.49,
    98.74,
    98.64,
    98.81,
    98.50,
    98.79,
    99.10,
)
PRESETS = ("aime", "steady", "restless", "poor-draft")


def preset(name: str) -> SynthParameters:
    """Return a named parameter set.

    ``aime``: Qwen3-8B on a reasoning workload, as shipped. ``steady``: half the movement.
    ``restless``: a long document whose sets change more (movement x 1.5). ``poor-draft``: a
    drafter that is seldom accepted and whose queries are far off. Raises InputError for
    another name.
    """
    aime = _aime()
    if name == "aime":
        return aime
    if name == "steady":
        return aime.replace(name="steady-synthetic", volatility=0.5)
    if name == "restless":
        return aime.replace(name="restless-synthetic", volatility=1.5)
    if name == "poor-draft":
        return aime.replace(
            name="poor-draft-synthetic", draft_accepted_share=0.3, rejected_noise_factor=8.0
        )
    raise InputError(
        f"preset {printable(name, 60)!r} is not known",
        fix=f"use one of {', '.join(PRESETS)}{did_you_mean(name, PRESETS)}",
    )


def _aime() -> SynthParameters:
    """Return the fitted parameters."""
    errors = [100.0 - agreement for agreement in FIGURE_6_AGREEMENT_PCT]
    mean = sum(errors) / len(errors)
    return SynthParameters(
        name="aime-synthetic",
        recorded_heads=8,
        head_correlation=0.98,
        layer_spread=0.1,
        exchange_reach=4.0,
        exchange_pairs=16,
        drift=0.5,
        recency_boost=5.0,
        draft_noise_by_depth=tuple(round(error / mean, 3) for error in errors),
        profile_exponent=1.37311,
        static_share=0.27,
        static_exchanges=6.65815,
        volatile_refresh_low=0.235,
        volatile_refresh_high=1.0,
        burstiness=0.04721,
        flicker=1.27857,
        flicker_top_factor=1.5479,
        draft_noise=0.11642,
        draft_top_factor=7.83441,
        volatile_skew=4.8,
        draft_static_factor=0.05533,
        flicker_volatile_gain=0.53,
    )
