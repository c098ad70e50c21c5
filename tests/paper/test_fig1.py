"""Figure 1: models beyond grouped queries under the roofs of three tiers."""

from __future__ import annotations

import pytest

from oasis_sim.errors import InputError
from oasis_sim.fileio import loads_yaml
from oasis_sim.hardware import load_profile
from oasis_sim.model import load_model
from oasis_sim.network import load_network
from oasis_sim.paper import fig1
from oasis_sim.paper.attention import (
    AttentionModel,
    load_attention_models,
    read_attention_models,
)
from oasis_sim.paper.roofline import RooflineCase, roofline
from oasis_sim.scheme import load_scheme

CONTEXT = 32_768


def models() -> dict[tuple[str, str], AttentionModel]:
    """Return the shipped models by name and system."""
    schemes = (load_scheme("dense"), load_scheme("oasis"))
    return {(model.name, model.system): model for model in load_attention_models(schemes)}


@pytest.mark.parametrize(
    ("name", "system", "kv_bytes"),
    [
        ("llama-3.1-70b", "dense", 327_680),
        ("qwen3-8b", "oasis", 147_456),
        ("deepseek-v3", "native", 70_272),
        ("deepseek-v3.2", "native", 70_272),
        ("qwen3-next-80b", "native", 24_576),
        ("gpt-oss-120b", "native", 36_864),
        ("gpt-oss-20b", "native", 24_576),
    ],
)
def test_kv_bytes_per_token(name: str, system: str, kv_bytes: int) -> None:
    """The bytes that one more token adds are the known ones."""
    assert models()[name, system].kv_bytes_per_token == kv_bytes


def test_index_keys_and_state() -> None:
    """DSA adds 8,052 bytes of index keys per token, the hybrid 72 MiB whatever its context."""
    found = models()
    dsa, hybrid = found["deepseek-v3.2", "native"], found["qwen3-next-80b", "native"]
    assert dsa.index_bytes * dsa.kv_layers == 8_052
    assert hybrid.fixed_bytes(1) == hybrid.fixed_bytes(CONTEXT) == 72 * 2**20


@pytest.mark.parametrize("scheme", ["dense", "oasis"])
def test_agrees_with_the_roofline_of_the_engine(scheme: str) -> None:
    """For grouped queries the bytes are those of the command `roofline`."""
    model = models()["qwen3-8b", scheme]
    case = RooflineCase(
        load_profile("h100"), load_model("qwen3-8b"), CONTEXT, load_network(fig1.NETWORK)
    )
    tiers = {tier.name: tier for tier in roofline(case, load_scheme(scheme)).tiers}
    assert model.read_bytes(CONTEXT) == pytest.approx(tiers["hbm"].kv_bytes_per_token)
    if scheme == "oasis":
        assert model.moved_bytes(CONTEXT) == pytest.approx(tiers["pcie"].kv_bytes_per_token)


@pytest.mark.parametrize("engine", ["roofline", "vllm"])
def test_the_batch_is_that_of_the_command_roofline(engine: str) -> None:
    """Figure 1 and `roofline` leave the same HBM to the requests of a dense model."""
    profile, model = load_profile("h100"), load_model("qwen3-8b")
    case = RooflineCase(profile, model, CONTEXT, load_network(fig1.NETWORK), engine=engine)
    dense = models()["qwen3-8b", "dense"]
    found = fig1.batch_rate(profile, dense, CONTEXT, profile.engine(engine))
    assert found is not None
    # Every pass of Figure 1 streams all weights, which bounds it at this batch.
    batch = found * dense.weight_bytes / profile.gpu.hbm_bytes_per_s
    assert pytest.approx(roofline(case, load_scheme("dense")).batch) == batch


def rates(name: str, system: str, metric: str) -> dict[str, float | None]:
    """Return one metric of a model by roof."""
    found = fig1.compare(load_profile("h100"))
    return {
        str(row.keys["roof"]): row.simulated
        for row in found.rows
        if (row.keys["model"], row.keys["system"], row.metric) == (name, system, metric)
    }


def test_sharing_and_sparsity_raise_the_intensity() -> None:
    """MLA is above GQA by sharing, DSA above MLA and NSA above GQA by sparsity."""
    intensity = {
        key: rates(*key, fig1.INTENSITY)["hbm"]
        for key in (
            ("llama-3.1-70b", "dense"),
            ("deepseek-v3", "native"),
            ("deepseek-v3.2", "native"),
            ("nsa-27b", "native"),
        )
    }
    gqa, mla, dsa, nsa = intensity.values()
    assert gqa is not None
    assert mla is not None
    assert dsa is not None
    assert nsa is not None
    assert gqa < mla < dsa
    assert gqa < nsa


def test_a_rate_is_intensity_times_bandwidth() -> None:
    """Every tier permits what its bandwidth times the GPUs carries."""
    profile = load_profile("h100")
    bandwidth = {
        "hbm": profile.gpu.hbm_bytes_per_s,
        "pcie": profile.pcie.bytes_per_s,
        "network": load_network(fig1.NETWORK).node_bytes_per_s,
    }
    permitted = rates("deepseek-v3", "native", fig1.RATE)
    for tier, intensity in rates("deepseek-v3", "native", fig1.INTENSITY).items():
        assert intensity is not None
        assert permitted[tier] == pytest.approx(intensity / 1e9 * 16 * bandwidth[tier])


def test_what_does_not_fit_has_no_batch() -> None:
    """On a card with less memory the batch roof is empty and a note says so."""
    found = fig1.compare(load_profile("h100"), context=10_000_000)
    assert any("qwen3-8b does not fit" in note for note in found.notes)


def test_a_context_within_the_working_set_moves_nothing() -> None:
    """All kept tokens are resident: the link has no roof."""
    assert models()["deepseek-v3.2", "native"].moved_bytes(2048) == 0
    assert models()["deepseek-v3.2", "native"].moved_bytes(4096) > 0


def test_a_hot_buffer_frees_hbm_and_spares_the_link() -> None:
    """HiSparse keeps 4,096 latents and the index: 288 MB and 264 MB at 32K; 2.6 GB without it."""
    native, hot = (models()["deepseek-v3.2", system] for system in ("native", "hisparse"))
    latent, index = 61 * 1152, 61 * 132
    assert hot.resident_bytes(CONTEXT, offloaded=True) == 4096 * latent + CONTEXT * index
    assert native.resident_bytes(CONTEXT, offloaded=False) == CONTEXT * (latent + index)
    assert hot.moved_bytes(CONTEXT) == pytest.approx(0.134 * 2048 * latent)
    profile, costs = load_profile("h100"), load_profile("h100").engine("vllm")
    batch, most = (fig1.batch_rate(profile, each, CONTEXT, costs) for each in (native, hot))
    assert batch is not None
    assert most is not None
    assert most > 4 * batch


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("{name: a, gpus: 0, shape: qwen3-8b}", "gpus"),
        ("{name: a, gpus: 1, shape: nothing}", "nothing"),
        ("{name: a, gpus: 1, attention: odd}", "attention"),
        ("{name: a, gpus: 1, attention: dsa, system: odd}", "system"),
        ("{name: a, gpus: 1, shape: qwen3-8b, colour: red}", "colour"),
    ],
)
def test_mistakes_are_named(entry: str, problem: str) -> None:
    """A wrong entry is refused with the field that is wrong."""
    text = f"schema_version: 1\nmodels:\n  - {entry}\n"
    with pytest.raises(InputError, match=problem):
        read_attention_models(loads_yaml(text, "models.yaml"), (load_scheme("dense"),))
