"""Hardware profiles: shipped ones load, every number has a source, mistakes are named."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from oasis_sim.cli.main import main
from oasis_sim.engine.costs import CostModel
from oasis_sim.errors import InputError, UsageError
from oasis_sim.fileio import shipped_inputs
from oasis_sim.hardware import Curve, load_profile, read_profile
from oasis_sim.model import load_model
from oasis_sim.scheme import load_scheme

POINT = {"rows": [1], "share": [0.5]}
PARTS = {part: {"rows": [1], "share": [0.5]} for part in ("qkv", "output_ffn", "lm_head")}
H100 = shipped_inputs("profile")["h100"]


def edited(tmp_path: Path, **changes: object) -> Path:
    """Write h100 with some dotted keys replaced (None removes a key)."""
    data = yaml.safe_load(H100.read_text())
    for dotted, value in changes.items():
        *path, last = dotted.split("__")
        place = data
        for key in path:
            place = place[key]
        if value is None:
            del place[last]
        else:
            place[last] = value
    file = tmp_path / "edited.yaml"
    file.write_text(yaml.safe_dump(data, sort_keys=False))
    return file


@pytest.mark.parametrize("name", sorted(shipped_inputs("profile")))
def test_shipped_profiles_load(name: str) -> None:
    """Each shipped profile reads, knows the roofline engine, and cites every number."""
    profile = load_profile(name)
    assert name == profile.name
    assert "roofline" in profile.engines
    assert all(source.strip() for source in profile.sources.values())
    assert {"gpu.hbm_bandwidth", "pcie.bandwidth", "host.kv_capacity_per_gpu"} <= set(
        profile.sources
    )
    for engine in profile.engines.values():
        assert engine.source
        for transport in engine.transports.values():
            assert max(transport.bytes_per_s.y) <= profile.pcie.bytes_per_s


def test_the_paper_s_nominal_figures() -> None:
    """The h100 profile has the nominal figures that the paper computes with."""
    profile = load_profile("h100")
    assert 3.35e12 == profile.gpu.hbm_bytes_per_s
    assert 64e9 == profile.pcie.bytes_per_s


def test_an_engine_like_another_profile_s_keeps_its_numbers() -> None:
    """`like` takes the shares of the other profile and says so in the source."""
    h100, h200 = load_profile("h100"), load_profile("h200")
    assert h200.engine("gpu_exec").launch == h100.engine("gpu_exec").launch
    assert "not measured" in h100.engine("gpu_exec").source


def test_unknown_engine_and_transport_name_the_known_ones() -> None:
    """Asking for what is not there lists what is."""
    profile = load_profile("h100")
    with pytest.raises(UsageError, match="choose one of: freekv, gpu_exec, infinigen, roofline"):
        profile.engine("tgi")
    with pytest.raises(UsageError, match="sm_gather"):
        profile.engine("vllm").transport("pigeon")


def test_a_profile_of_one_gpu_needs_no_link_to_another(tmp_path: Path) -> None:
    """Without `nvlink` the profile reads; only what needs the link is refused, with the field."""
    profile = read_profile(edited(tmp_path, nvlink=None))
    assert profile.nvlink is None
    with pytest.raises(InputError, match="nvlink: profile h100 has no link between GPUs") as caught:
        profile.gpu_link  # noqa: B018 - asking for it is the test
    assert 3 == caught.value.exit_code


def test_only_a_run_on_several_gpus_needs_the_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One GPU runs; two are refused before anything is simulated."""
    name = str(edited(tmp_path, nvlink=None))
    options = ("--profile", name, "--scheme", "dense", "--requests", "1", "--output-tokens", "2")
    assert 0 == main(["run", *options, "--out", str(tmp_path / "one"), "--quiet"])
    assert 3 == main(["run", *options, "--out", str(tmp_path / "two"), "--tp", "2"])
    assert "nvlink" in capsys.readouterr().err
    assert not (tmp_path / "two").exists()


def test_one_curve_serves_all_linear_layers() -> None:
    """Rows and shares that name no group hold for each of them."""
    found = load_profile("h100").engine("vllm").linear_efficiency
    assert found.qkv == found.output_ffn == found.lm_head
    assert 0.5 == found.of("lm_head").at(192)


def test_each_group_of_linear_layers_has_its_own_curve(tmp_path: Path) -> None:
    """The groups are told apart, in the file and in the price of each."""
    shares = {"qkv": 0.4, "output_ffn": 0.8, "lm_head": 0.5}
    section = {part: {"rows": [8, 64], "share": [s, 2 * s]} for part, s in shares.items()}
    section["output_ffn"]["share"] = [0.8, 0.8]
    profile = read_profile(edited(tmp_path, engines__vllm__linear_efficiency=section))
    found = profile.engine("vllm").linear_efficiency
    assert {part: found.of(part).at(8) for part in shares} == shares
    assert [found.qkv.at(64), found.output_ffn.at(64), found.lm_head.at(64)] == [0.8, 0.8, 1.0]
    cost = CostModel(profile, "vllm", load_model("qwen3-8b"), load_scheme("oasis"), 1)
    ideal = CostModel(profile, "roofline", load_model("qwen3-8b"), load_scheme("oasis"), 1)
    for part in (cost.share.qkv, cost.share.output_ffn, cost.share.lm_head):
        expected = ideal.linear_ps(part, 8) / shares[part.name]
        assert pytest.approx(expected, abs=3) == cost.linear_ps(part, 8)


def test_the_draft_may_depend_on_the_rows(tmp_path: Path) -> None:
    """A number holds for any rows, a curve says what it is by rows; a step pays that many."""
    section = {"rows": [8, 64], "layers": [2.0, 1.0]}
    profile = read_profile(edited(tmp_path, engines__vllm__draft_layers=section))
    assert [2.0, 1.0] == [profile.engine("vllm").draft_layers.at(rows) for rows in (4, 100)]
    assert 2.0 == load_profile("h100").engine("vllm").draft_layers.at(100)
    plain, curved = (
        CostModel(each, "vllm", load_model("qwen3-8b"), load_scheme("oasis"), 1).draft_ps(64, 0)
        for each in (load_profile("h100"), profile)
    )
    assert plain == pytest.approx(2 * curved, abs=1)


def test_the_lm_head_may_run_on_one_row_of_a_request(tmp_path: Path) -> None:
    """With a draft row in each request it then prices and bounds half of the rows."""
    flagged = read_profile(edited(tmp_path, engines__vllm__lm_head_per_request=True))
    model, scheme = load_model("qwen3-8b"), load_scheme("oasis")
    both, one = (
        CostModel(profile, "vllm", model, scheme, 1).head_rows(2 * 96)
        for profile in (load_profile("h100"), flagged)
    )
    assert (192, 96) == (both, one)
    dense = CostModel(flagged, "vllm", model, load_scheme("dense"), 1)
    assert 96 == dense.head_rows(96)


def test_prediction_inline_disturbs_nothing(tmp_path: Path) -> None:
    """The flag stands in place of the slowdown; an engine has the one or the other."""
    inline = {"engines__vllm__prediction_inline": True}
    profile = read_profile(edited(tmp_path, engines__vllm__prediction_slowdown=None, **inline))
    engine = profile.engine("vllm")
    assert engine.prediction_inline
    assert engine.prediction_slowdown is None
    assert not load_profile("h100").engine("vllm").prediction_inline


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("gpu__hbm_capacity__value", "80 Gb", "GiB"),
        ("gpu__hbm_capacity__value", 80, "has no unit"),
        ("gpu__hbm_bandwidth__source", None, "source: is missing"),
        ("gpu__sms__value", True, "whole number"),
        ("gpu__sms__value", -1, "out of range"),
        ("pcie__usable_bandwidth__value", "65 GB/s", "exceeds the bandwidth"),
        ("pcie__colour", "red", "not a known key"),
        ("nvlink__latency", None, "nvlink.latency: is missing"),
        ("network", {"bandwidth": "1 GB/s"}, "(--network)"),
        ("schema_version", 2, "out of range"),
        ("origin", "hearsay", "use one of"),
        ("engines__vllm__hbm_share", 1.5, "out of range"),
        ("engines__vllm__linear_efficiency__rows", [1, 64, 64], "rows"),
        ("engines__vllm__linear_efficiency__share", [0.5], "points for"),
        ("engines__vllm__prediction_slowdown__attention", 0.5, "out of range"),
        ("engines__vllm__prediction_slowdown", None, "prediction_slowdown: is missing"),
        ("engines__vllm__prediction_inline", "yes", "prediction_inline: is the text 'yes'"),
        ("engines__vllm__prediction_inline", True, "prediction_slowdown: has no effect with"),
        ("engines__vllm__linear_efficiency__qkv", POINT, "linear_efficiency.lm_head: is missing"),
        ("engines__vllm__linear_efficiency__qkv", POINT, "rows: is not a known key"),
        ("engines__vllm__linear_efficiency", {}, "linear_efficiency.rows: is missing"),
        ("engines__vllm__linear_efficiency", {"kqv": POINT}, "kqv: is not a known key"),
        ("engines__vllm__linear_efficiency", PARTS | {"lm_head": 0.5}, "lm_head: is the number"),
        (
            "engines__vllm__linear_efficiency",
            PARTS | {"qkv": {"rows": [1, 8], "share": [0.5, 1.5]}},
            "linear_efficiency.qkv.share[1]: 1.5 is out of range",
        ),
        ("engines__vllm__launch__gap", "1 lightyear", "gap"),
        ("engines__roofline", {"source": "mine"}, "derived from the limits"),
        ("engines__gpu_exec__like", "h100", "defines no such engine"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, key: str, value: object, words: str) -> None:
    """Each wrong value gives one message with the file and the field."""
    path = edited(tmp_path, **{key: value})
    with pytest.raises(InputError) as caught:
        read_profile(path)
    assert words in str(caught.value)
    assert "edited.yaml" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("gpu__hbm_bandwidth__value", "0 B/s", "use 1 MB/s to 1 PB/s"),
        ("gpu__hbm_bandwidth__value", "0.1 B/s", "use 1 MB/s to 1 PB/s"),
        ("gpu__bf16_dense__value", "0 FLOP/s", "use 1 GFLOP/s to 1000 PFLOP/s"),
        ("gpu__hbm_capacity__value", "0 B", "use 1 MB to 1 PB"),
        ("pcie__bandwidth__value", "1 kB/s", "use 1 MB/s to 1 PB/s"),
        ("pcie__usable_bandwidth__value", "0 GB/s", "use 1 MB/s to 1 PB/s"),
        ("nvlink__bandwidth__value", "0 Gbit/s", "use 1 MB/s to 1 PB/s"),
        ("nvlink__latency__value", "1 h", "use 0 ps to 1 s"),
        ("host__dram_bandwidth_per_gpu__value", "0 B/s", "use 1 MB/s to 1 PB/s"),
        ("engines__vllm__launch__gap", "1 h", "use 0 ps to 10 ms"),
        ("engines__vllm__launch__step", "2000 h", "use 0 ps to 10 s"),
        ("engines__vllm__launch__dense_request", "2 s", "use 0 ps to 1 s"),
        ("engines__vllm__collective", "1 h", "use 0 ps to 1 s"),
        ("engines__vllm__selection__fixed", "1000 h", "use 0 ps to 1 s"),
        ("engines__vllm__transports__sm_gather__fixed", "1000 h", "use 0 ps to 1 s"),
        ("engines__vllm__transports__cpu_gather__rate", ["0 B/s"], "use 1 MB/s to 1 PB/s"),
        ("engines__shadowkv__prefill__token_layer", "1 s", "use 0 ps to 10 ms"),
        ("engines__vllm__reserved", "2 PB", "use 0 B to 1 PB"),
    ],
)
def test_numbers_of_no_machine_are_refused(
    tmp_path: Path, key: str, value: object, said: str
) -> None:
    """Zero rates and times of hours are refused with line, field and bounds, all by exit code 3."""
    path = edited(tmp_path, **{key: value})
    with pytest.raises(InputError) as caught:
        read_profile(path)
    field = key.removesuffix("__value").replace("__", ".")
    assert f": {field}" in str(caught.value)
    assert said in str(caught.value)
    assert caught.value.exit_code == 3
    assert "edited.yaml:" in str(caught.value)


@pytest.mark.parametrize(
    "key",
    [
        "gpu__power",
        "nvlink",
        "engines",
        "engines__vllm__prediction_inline",
        "engines__vllm__draft_layers",
        "engines__vllm__selection__per_block_ns",
        "engines__vllm__linear_efficiency__qkv",
        "engines__vllm__transports__sm_gather__idle_speedup",
        "engines__vllm__transports__sm_gather__linear_covered",
        "engines__vllm__transports__sm_gather__qkv_slowdown",
        "engines__gpu_exec__like",
    ],
)
def test_an_optional_key_left_empty_is_no_default(tmp_path: Path, key: str) -> None:
    """`key:` with nothing behind it is a slip of the pen, not the wish for the default."""
    path = edited(tmp_path, **{key: "LEFT"})
    path.write_text(path.read_text().replace("LEFT", ""))
    with pytest.raises(InputError) as caught:
        read_profile(path)
    assert f": {key.replace('__', '.')}: is empty; write" in str(caught.value)
    assert 3 == caught.value.exit_code


@pytest.mark.parametrize("key", ["rows", "share"])
def test_half_a_curve_is_one_mistake(tmp_path: Path, key: str) -> None:
    """The list that is missing is named, and not also that the other one does not fit it."""
    path = edited(tmp_path, **{f"engines__vllm__linear_efficiency__{key}": None})
    with pytest.raises(InputError) as caught:
        read_profile(path)
    assert f"linear_efficiency.{key}" == str(caught.value.field).removeprefix("engines.vllm.")
    assert "is missing" == caught.value.problem


@pytest.mark.parametrize(("rate", "after", "good"), [(64, 1, True), (65, 1, False), (33, 2, False)])
def test_no_transport_is_faster_than_its_link(
    tmp_path: Path, rate: int, after: int, good: bool
) -> None:
    """The link of h100 moves 64 GB/s: beside work no more, nor after it."""
    way = {"unit": ["8 KiB"], "rate": [f"{rate} GB/s"], "idle_speedup": [after], "fixed": "0 us"}
    way["slowdown"] = {"linear": {"rows": [1], "factor": [1]}, "attention": 1, "prediction": 1}
    path = edited(tmp_path, engines__vllm__transports__naive=way)
    if good:
        assert 64e9 == read_profile(path).engine("vllm").transport("naive").bytes_per_s.at(8192)
        return
    with pytest.raises(InputError) as caught:
        read_profile(path)
    assert "engines.vllm.transports.naive.rate" == caught.value.field
    assert "exceeds the link's bandwidth (64.0 GB/s)" in caught.value.problem


@given(st.lists(st.floats(0.1, 1e9), min_size=1, max_size=6, unique=True), st.floats(1e-3, 1e12))
def test_a_curve_stays_within_its_points(xs: list[float], x: float) -> None:
    """Interpolation never leaves the range of the measured values and meets every point."""
    points = sorted(xs)
    curve = Curve(tuple(points), tuple(math.log(p) for p in points))
    assert min(curve.y) - 1e-9 <= curve.at(x) <= max(curve.y) + 1e-9
    for p, y in zip(curve.x, curve.y, strict=True):
        assert curve.at(p) == pytest.approx(y)


@pytest.mark.parametrize(
    "points", [((), ()), ((1.0, 1.0), (1.0, 2.0)), ((0.0,), (1.0,)), ((1.0,), ())]
)
def test_bad_curves_are_refused(points: tuple[tuple[float, ...], tuple[float, ...]]) -> None:
    """A curve needs points in increasing order of positive x."""
    with pytest.raises(ValueError, match=r"points|positive"):
        Curve(*points)
