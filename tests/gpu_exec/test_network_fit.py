"""Fits of measured transfers: what is fitted, what is held out, what the committed files say."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_exec.network import judge
from gpu_exec.network.fit import fit_terms, profile_of
from gpu_exec.network.measure import Reading, measure
from gpu_exec.network.points import POOL_BYTES, Point, most_bytes_of, points
from gpu_exec.network.stamps import Units
from oasis_sim.cli.main import main
from oasis_sim.curve import Curve
from oasis_sim.errors import RunFailed, TargetMissed
from oasis_sim.network import NetworkProfile, read_network
from oasis_sim.network.write import network_yaml
from oasis_sim.units import MIB
from tests.gpu_exec.fake_transport import QUICK, SMALL, FakeTransport, a_network

ROOT = Path(__file__).parents[2]


def fitted(network: NetworkProfile, disturbance: float = 0.0) -> tuple[NetworkProfile, float]:
    """Measure a fake transport of a network, fit it, return profile and held-out median error."""
    transport = FakeTransport(network, disturbance=disturbance)
    readings = measure(transport, SMALL, QUICK)
    found = profile_of("found", fit_terms(readings), transport.info, None, "today")
    return found, judge.judge(found, readings).median_abs_error_pct


# Points -----------------------------------------------------------------------------------------


def test_no_size_or_count_is_both_fitted_and_judged() -> None:
    """Held-out transfers share neither unit size nor count with those that are fitted."""
    fit, held_out = ([p for p in points() if p.judges is judges] for judges in (False, True))
    assert {p.unit_bytes for p in fit}.isdisjoint(p.unit_bytes for p in held_out)
    assert {p.count for p in fit}.isdisjoint(p.count for p in held_out)
    assert len(held_out) >= 16
    assert all(p.count <= POOL_BYTES // p.unit_bytes // 2 for p in points())


# Fitting ----------------------------------------------------------------------------------------


def test_a_fit_finds_the_network_again() -> None:
    """From undisturbed times: latency exactly, posting and rates closely, held-out within 3 %."""
    network = a_network(efficiency=Curve.constant(0.8))
    found, error = fitted(network)
    assert pytest.approx(network.latency_ps, rel=1e-3) == found.latency_ps
    assert pytest.approx(network.posting_ps, rel=1e-2) == found.posting_ps
    assert pytest.approx(0.8 * network.rail_bytes_per_s, rel=1e-2) == found.rail_bytes_per_s
    assert error < 0.5


def test_a_fit_follows_the_efficiency_curve() -> None:
    """Where small descriptors use the link badly, unseen sizes are still priced within 5 %."""
    _, error = fitted(a_network())
    assert error < 5.0


def test_disturbed_times_cost_little() -> None:
    """A machine that adds time to every transfer alike leaves the model within the bound."""
    _, error = fitted(a_network(efficiency=Curve.constant(0.8)), disturbance=0.2)
    assert error < judge.MEDIAN_BOUND_PCT


def test_a_wrong_model_misses_the_target() -> None:
    """Judging is not lenient: a network twice as fast is refused."""
    readings = measure(FakeTransport(a_network()), SMALL, QUICK)
    other = a_network(latency_ps=0, posting_ps=0)
    with pytest.raises(TargetMissed, match=r"in the median of 1\d that were not fitted"):
        judge.check(judge.judge(other, readings))


def test_the_written_profile_reads_back(tmp_path: Path) -> None:
    """The loader finds the same numbers, all with sources, and the header as comments."""
    found, _ = fitted(a_network())
    path = tmp_path / "found.yaml"
    path.write_text(network_yaml(found, ["date today", "two"]))
    back = read_network(path)
    assert found.efficiency.x == back.efficiency.x
    assert pytest.approx(found.efficiency.y, rel=1e-5) == back.efficiency.y
    assert replace(found, efficiency=back.efficiency) == back
    assert path.read_text().startswith("# date today\n# two\n")


def test_a_nominal_rate_below_the_measured_one_is_refused() -> None:
    """The link cannot be slower than what went over it."""
    readings = measure(FakeTransport(a_network()), SMALL, QUICK)
    with pytest.raises(RunFailed, match="more than the nominal 1 GB/s"):
        profile_of("x", fit_terms(readings), FakeTransport.info, 10**9, "today")


def test_times_that_do_not_grow_are_refused() -> None:
    """A clock that shows the same for everything gives no profile."""
    readings = [Reading(point, (1e-3,) * 4) for point in SMALL]
    with pytest.raises(RunFailed, match="do not grow"):
        fit_terms(readings)


def test_a_link_too_fast_to_show_its_bytes_is_fitted() -> None:
    """Where sizes make no difference the wire keeps its nominal rate, and times come out right."""
    nominal = 450 * 10**9
    readings = [
        Reading(point, (5e-6 + 3e-6 * point.count + (point.unit_bytes % 7) * 1e-9,))
        for point in points(most_bytes_of("gpu"))
    ]
    network = profile_of("fast", fit_terms(readings, nominal), FakeTransport.info, nominal, "today")
    assert nominal == network.send_bytes_per_s
    assert judge.judge(network, readings).median_abs_error_pct < 1.0


def test_gpus_move_more_to_be_told_apart() -> None:
    """The largest transfers of GPUs are larger, and still fit the pools."""
    assert max(p.transfer.total_bytes for p in points(most_bytes_of("gpu"))) == 16 * MIB
    assert all(p.count <= POOL_BYTES // p.unit_bytes // 2 for p in points(most_bytes_of("gpu")))
    assert points() == points(most_bytes_of("host"))


def test_too_few_readings_are_refused() -> None:
    """One size fits nothing."""
    with pytest.raises(RunFailed, match="too few"):
        fit_terms([Reading(Point(4096, 1, False), (1e-3,))])


def test_readings_are_kept_when_nothing_can_be_fitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 1 with the reason; the raw file holds every reading, and there is no profile."""

    class Constant(FakeTransport):
        def __init__(self, memory: str, peer: str | None) -> None:
            super().__init__(a_network())

        def read(self, unit_bytes: int, into: Units, source: Units) -> float:
            super().read(unit_bytes, into, source)
            return 1e-3

        def close(self) -> None:
            """Nothing to let go of."""

    monkeypatch.setattr("gpu_exec.network.nixl_side.load_nixl", lambda: None)
    monkeypatch.setattr("gpu_exec.network.nixl_transport.NixlTransport", Constant)
    monkeypatch.setattr("gpu_exec.network.points.points", lambda most: SMALL)
    monkeypatch.setattr("gpu_exec.network.measure.Effort", lambda: QUICK)
    out, raw = tmp_path / "x.yaml", tmp_path / "x.json"
    assert 1 == main(["calibrate", "--network", "--out", str(out), "--raw", str(raw), "--quiet"])
    assert "do not grow" in capsys.readouterr().err
    assert not out.exists()
    rows = json.loads(raw.read_text())["rows"]
    assert len(SMALL) == len(rows)
    assert all(6 == len(row["all_us"]) for row in rows)


# The committed measurement ----------------------------------------------------------------------

MEASURED = sorted((ROOT / "validation").glob("network-*.json"))


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.stem)
def test_committed_measurements_follow_from_their_readings(path: Path) -> None:
    """Fit and judgement of each file come out again from its raw readings, within the bound."""
    document = json.loads(path.read_text())
    readings = [
        Reading(
            Point(row["unit_bytes"], row["count"], row["held_out"]),
            tuple(us / 1e6 for us in row["all_us"]),
        )
        for row in document["rows"]
    ]
    network = read_network(path.with_suffix(".yaml"))
    again = judge.judge(network, readings)
    said = document["summary"]
    assert pytest.approx(said["median_abs_error_pct"], abs=0.2) == again.median_abs_error_pct
    assert again.median_abs_error_pct <= judge.MEDIAN_BOUND_PCT
    given = "given" in network.sources["nic.send"]
    terms = fit_terms(readings, network.send_bytes_per_s if given else None)
    assert pytest.approx(network.posting_ps, rel=0.02) == terms.posting_s * 1e12


def test_the_documented_tables_are_those_of_the_files() -> None:
    """docs/networks.md shows the committed measurements."""
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "network_table.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = (ROOT / "docs" / "networks.md").read_text(encoding="utf-8")
    assert module.renewed(text) == text, "run: python docs/network_table.py --write"
