"""Figure 1: models placed by their Token-KV intensity under the roofs of three memory tiers.

Intensity = tokens per decode pass / KV bytes moved over a tier; the tier permits intensity x
bandwidth. Beside the tiers stands the batch, B_max / TPOT_min: B_max = KV pool / resident bytes per
request, TPOT_min = max(weight bytes / HBM bandwidth, FLOPs / peak). (arXiv 2608.08097, figure 1.)
"""

from __future__ import annotations

from dataclasses import dataclass

from oasis_sim.hardware import EngineCosts, HardwareProfile
from oasis_sim.network import NetworkProfile, load_network
from oasis_sim.paper.attention import NATIVE, AttentionModel, load_attention_models
from oasis_sim.paper.comparison import Comparison, Row
from oasis_sim.scheme import load_scheme
from oasis_sim.units import GB

NAME = "fig1"
TITLE = "Figure 1: Token-KV intensity by tier, and what it permits"
CONTEXT_TOKENS = 32_768
SCHEMES = ("dense", "oasis")
NETWORK = "roce-400"
TIERS = ("hbm", "pcie", "network")
BATCH = "batch"
INTENSITY, RATE = "intensity_tokens_per_gb", "output_tokens_per_s_max"
NOTES = (
    "the published figure has no numbers on its axes: models are placed by computation alone",
    "tier hbm: KV in HBM; pcie and network: KV in host memory or on another node, the working set "
    "in HBM; batch: B_max / TPOT_min in the HBM that the engine leaves, KV in host memory for "
    "oasis and hisparse and in HBM for the others",
    "bandwidths are nominal and of all GPUs of the model, its KV split over them without copies; "
    "system oasis moves its cap of blocks, systems without selection move all KV in every step",
)


@dataclass(frozen=True)
class Placement:
    """Hold the roofs of one model, in output tokens per second of all its GPUs."""

    intensities: dict[str, float | None]
    rates: dict[str, float | None]


def compare(
    profile: HardwareProfile, context: int = CONTEXT_TOKENS, engine: str = "roofline"
) -> Comparison:
    """Place every model at one context; `engine` leaves HBM for the batch as in a run."""
    models = load_attention_models(tuple(load_scheme(name) for name in SCHEMES))
    network = load_network(NETWORK)
    rows: list[Row] = []
    misfits = []
    for model in models:
        found = place(profile, network, model, context, profile.engine(engine))
        keys = {"model": model.name, "attention": model.attention, "system": model.system}
        extra = {"gpus": model.gpus}
        for tier in TIERS:
            at: dict[str, str | float] = {**keys, "roof": tier}
            rows.append(Row(at, INTENSITY, "tok/GB", None, found.intensities[tier], extra))
            rows.append(Row(at, RATE, "tok/s", None, found.rates[tier], extra))
        rows.append(Row({**keys, "roof": BATCH}, RATE, "tok/s", None, found.rates[BATCH], extra))
        if found.rates[BATCH] is None:
            misfits.append(f"{model.name} does not fit {model.gpus} x {profile.name}")
    title = f"{TITLE} ({context:,} tokens, {profile.name}, {network.name})"
    return Comparison(NAME, title, tuple(rows), (*NOTES, *dict.fromkeys(misfits)))


def place(
    profile: HardwareProfile,
    network: NetworkProfile,
    model: AttentionModel,
    context: int,
    costs: EngineCosts,
) -> Placement:
    """Compute intensities in tokens per GB, and roofs in tokens per second of all GPUs."""
    moved = model.moved_bytes(context)
    sizes = {"hbm": model.read_bytes(context), "pcie": moved, "network": moved}
    bandwidths = {
        "hbm": profile.gpu.hbm_bytes_per_s,
        "pcie": profile.pcie.bytes_per_s,
        "network": network.node_bytes_per_s,
    }
    intensities = {tier: GB / size if size else None for tier, size in sizes.items()}
    rates: dict[str, float | None] = {
        tier: model.gpus * bandwidths[tier] / size if size else None for tier, size in sizes.items()
    }
    return Placement(intensities, {**rates, BATCH: batch_rate(profile, model, context, costs)})


def batch_rate(
    profile: HardwareProfile, model: AttentionModel, context: int, costs: EngineCosts
) -> float | None:
    """Return B_max / TPOT_min in tokens per second, None when nothing fits.

    Every pass reads all weights: at such batches every expert is in use.
    """
    gpu, gpus = profile.gpu, model.gpus
    room = costs.usable_bytes(gpu.hbm_bytes) - costs.reserved_per_gpu(gpus)
    pool = gpus * room - model.weight_bytes
    offloaded = model.system not in {"dense", NATIVE}
    batch = int(pool // model.resident_bytes(context, offloaded))
    if batch < 1:
        return None
    streamed = model.weight_bytes / (gpus * gpu.hbm_bytes_per_s)
    computed = 2.0 * model.active_params * batch / (gpus * gpu.bf16_flops_per_s)
    return batch / max(streamed, computed)
