"""Calibration of a network: what is fitted, what is held out, what is refused; NIXL where it is."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from gpu_exec.network import judge
from gpu_exec.network.channel import Channel, connect, listen, place_of
from gpu_exec.network.fit import fit_terms, profile_of
from gpu_exec.network.greeting import Greeting, machine, read_greeting
from gpu_exec.network.measure import Effort, Reading, measure
from gpu_exec.network.nixl_side import load_nixl, ucx_settings
from gpu_exec.network.points import POOL_BYTES, Point, most_bytes_of, points
from gpu_exec.network.pool import HostPool, open_pool
from gpu_exec.network.serve import kept_awake
from gpu_exec.network.stamps import POISON, Units, pool_words, units_of, wrong_bytes
from oasis_sim.cli.main import main
from oasis_sim.curve import Curve
from oasis_sim.errors import GpuUnavailable, OasisError, RunFailed, TargetMissed, UsageError
from oasis_sim.network import NetworkProfile, load_network, read_network
from oasis_sim.network.write import network_yaml
from oasis_sim.units import MIB
from tests.gpu_exec.fake_transport import FakeTransport

ROOT = Path(__file__).parents[2]
QUICK = Effort(rounds=2, transfers=3, seconds=0.0)
SMALL = points(MIB)


def a_network(**changes: object) -> NetworkProfile:
    """Return a network with a posting cost and an efficiency that falls for small descriptors."""
    network = replace(
        load_network("roce-100"),
        latency_ps=9_000_000,
        completion_ps=0,
        posting_ps=1_500_000,
        efficiency=Curve((4096.0, 65536.0, 1048576.0), (0.5, 0.9, 1.0)),
    )
    return replace(network, **changes)


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


# Verification -----------------------------------------------------------------------------------


def lose_a_unit(transport: FakeTransport, into: Units, source: Units) -> None:
    """Leave the last unit as it was."""
    units_of(transport.words, transport.unit_bytes)[into[-1]] = POISON


def swap_units(transport: FakeTransport, into: Units, source: Units) -> None:
    """Deliver another unit in place of the first."""
    units = units_of(transport.words, transport.unit_bytes)
    units[into[0]] = units_of(transport.remote, transport.unit_bytes)[source[0] ^ 1]


def deliver_the_last_generation(transport: FakeTransport, into: Units, source: Units) -> None:
    """Deliver what the peer held before it was stamped anew."""
    old = pool_words(transport.pool_bytes, 0)
    units = units_of(transport.words, transport.unit_bytes)
    units[into] = units_of(old, transport.unit_bytes)[source]


def write_elsewhere(transport: FakeTransport, into: Units, source: Units) -> None:
    """Damage one byte next to a unit."""
    transport.words.view(np.uint8)[(int(into[0]) + 1) * transport.unit_bytes] ^= 1


def flip_a_late_byte(transport: FakeTransport, into: Units, source: Units) -> None:
    """Damage the last byte of a unit, in a later transfer only."""
    if transport.transfers == 3:
        units = units_of(transport.words, transport.unit_bytes)
        units.view(np.uint8)[into[0], -1] ^= 0x80


@pytest.mark.parametrize(
    "fault",
    [lose_a_unit, swap_units, deliver_the_last_generation, write_elsewhere, flip_a_late_byte],
)
def test_every_wrong_byte_is_found(
    fault: Callable[[FakeTransport, Units, Units], None],
) -> None:
    """Lost, swapped, stale and misplaced bytes end the measurement."""
    with pytest.raises(RunFailed, match=r"bytes arrived wrong in transfer [13]"):
        measure(FakeTransport(a_network(), fault=fault), SMALL[:4], QUICK)


def test_wrong_bytes_counts_bytes() -> None:
    """One flipped bit is one byte."""
    local, remote = pool_words(4096, 0), pool_words(4096, 0)
    everything = np.arange(512, dtype=np.int32)
    assert 0 == wrong_bytes(local, remote, (8, everything, everything))
    local.view(np.uint8)[77] ^= 1
    assert 1 == wrong_bytes(local, remote, (8, everything, everything))


def test_a_point_larger_than_the_pool_is_refused() -> None:
    """The units would overlap."""
    transport = FakeTransport(a_network(), pool_bytes=MIB)
    with pytest.raises(UsageError, match="does not fit"):
        measure(transport, [Point(MIB, 1, False)], QUICK)


# The control channel ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"", "has closed the connection"),
        (b"GET / HTTP/1.1\r\n", "no message of this program"),
        (b"[1]\n", "no message of this program"),
        (b'{"done": "x"}\n', "sent no done"),
        (b'{"done": true}\n', "sent no done"),
        (b"\xff\xfe\n", "no message of this program"),
        (b"[" * 100_000 + b"\n", "no message of this program"),
    ],
)
def test_nonsense_from_the_other_side_is_told(sent: bytes, said: str) -> None:
    """Whatever answers, the message says so and nothing hangs."""
    with listen(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(sent)

        thread = threading.Thread(target=answer)
        thread.start()
        with (
            connect(("127.0.0.1", listener.getsockname()[1])) as channel,
            pytest.raises(RunFailed, match=said),
        ):
            channel.field(channel.receive(), "done", int)
        thread.join()


HELLO = Greeting("host", b"who", 1 << 40, 0, 1 << 30, "nixl 1.5.1", machine())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "http"}, "no serving side of this program"),
        ({"version": 1}, "speaks version 1 of the measurement, this one 2; install the same"),
        ({"memory": "gpu"}, "same --memory"),
        ({"pool_bytes": 8}, "same --memory"),
        ({"nixl": "nixl 1.4.0"}, "nixl 1.5.1 here, nixl 1.4.0 there; install the same version"),
        ({"metadata": "?"}, "broken metadata"),
        ({"metadata": "\u00e9"}, "broken metadata"),
        ({"address": -1}, "broken address"),
        ({"device": 256}, "broken device"),
        ({"remote_bytes": 0}, "broken remote_bytes"),
        ({"remote_bytes": 10**400}, "broken remote_bytes"),
        ({"address": "0"}, "sent no address"),
        ({"machine": None}, "sent no machine"),
    ],
)
def test_sides_that_do_not_fit_are_refused(changes: dict[str, object], said: str) -> None:
    """Other programs, versions, memories and versions of NIXL, each by name."""
    with pytest.raises(RunFailed, match=said):
        greeted(HELLO.message() | changes)


def test_a_greeting_arrives_as_it_was_sent() -> None:
    """Every field; and one machine is the same machine."""
    assert HELLO == greeted(HELLO.message())
    assert machine() == HELLO.machine


def greeted(message: dict[str, object]) -> Greeting:
    """Read a greeting that another side sends."""
    with listen(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with Channel(listener.accept()[0]) as other:
                other.send(message)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            with connect(("127.0.0.1", listener.getsockname()[1])) as channel:
                return read_greeting(channel, "host", "nixl 1.5.1")
        finally:
            thread.join()


def test_messages_pass_both_ways() -> None:
    """What one side sends the other receives."""
    with listen(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with Channel(listener.accept()[0]) as other:
                other.send({"done": other.receive()["renew"]})

        thread = threading.Thread(target=answer)
        thread.start()
        with connect(("127.0.0.1", listener.getsockname()[1])) as channel:
            channel.send({"renew": 7})
            assert {"done": 7} == channel.receive()
        thread.join()


def test_nobody_listening_is_told() -> None:
    """The message says what to start on the other host."""
    with listen(("127.0.0.1", 0)) as listener:
        place = ("127.0.0.1", listener.getsockname()[1])
    with pytest.raises(RunFailed, match="--serve HOST:PORT` there first"):
        connect(place)


NO_PLACES = ["", "host", ":5600", "host:", "host:x", "host:70000", "h:-1", "h:" + "9" * 5000]
NO_HOSTS = [".a:1", "a..b:1", "a" * 64 + ".org:1", "a\udc80:1", "a\0:1", "[]:1"]


@pytest.mark.parametrize("text", NO_PLACES + NO_HOSTS, ids=lambda text: ascii(text)[:20])
def test_places_are_checked(text: str) -> None:
    """HOST:PORT and nothing else."""
    with pytest.raises(UsageError, match="no HOST:PORT"):
        place_of(text)


def test_places_are_read() -> None:
    """Names, addresses, IPv6 in brackets."""
    assert ("host", 1) == place_of("host:1")
    assert ("::1", 5600) == place_of("[::1]:5600")


# The command ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--out", "x.yaml", "--gpu"), "measures no GPU"),
        (("--serve", "127.0.0.1:0", "--out", "x.yaml"), "writes nothing"),
        (("--out", "x.yaml", "--bandwidth", "400 Gb/s"), "bandwidth"),
    ],
)
def test_options_that_do_not_go_together(
    options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Usage errors, before anything is imported or measured."""
    assert 2 == main(["calibrate", "--network", *options])
    assert said in capsys.readouterr().err


def test_network_options_belong_to_network(capsys: pytest.CaptureFixture[str]) -> None:
    """--peer without --network is a mistake, not a wish for a GPU."""
    assert 2 == main(["calibrate", "--peer", "h:1", "--out", "x.yaml"])
    assert "--peer belongs to --network" in capsys.readouterr().err


def test_a_missing_or_unwritable_place_is_told_before_measuring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 3 with the path, exit 2 without one; nothing has been sent by then."""
    monkeypatch.setitem(sys.modules, "nixl", ModuleType("nixl"))
    monkeypatch.setitem(sys.modules, "nixl._api", ModuleType("nixl._api"))
    assert 2 == main(["calibrate", "--network"])
    assert "--out FILE" in capsys.readouterr().err
    assert 3 == main(["calibrate", "--network", "--out", str(tmp_path / "no" / "x.yaml")])
    assert "no place for a file" in capsys.readouterr().err


def test_without_nixl_it_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 2, the package and the command that installs it, whatever else is missing; no file."""
    for name in ("nixl", "nixl_cu13", "nixl_cu12"):
        monkeypatch.setitem(sys.modules, name, None)
    out = tmp_path / "x.yaml"
    for options in ([], ["--out", str(out)], ["--out", str(tmp_path / "no" / "x.yaml")]):
        assert 2 == main(["calibrate", "--network", *options])
        assert "pip install 'oasis-sim[network]'" in capsys.readouterr().err
    assert not out.exists()


def test_settings_of_ucx_are_kept() -> None:
    """What the environment tells UCX is part of a measurement."""
    assert "UCX defaults" == ucx_settings({"PATH": "/"})
    assert "UCX_NET_DEVICES=a UCX_TLS=tcp" == ucx_settings(
        {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "a"}
    )


def test_host_pools_poison_units() -> None:
    """Only the named units are overwritten."""
    pool = HostPool(4096)
    pool.fill(pool_words(4096, 1))
    pool.poison(1024, np.array([2], dtype=np.int32))
    words = units_of(pool.words(), 1024)
    assert (words[2] == POISON).all()
    assert (words[[0, 1, 3]] == units_of(pool_words(4096, 1), 1024)[[0, 1, 3]]).all()


def test_gpu_memory_needs_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 5, with what is there."""
    torch = pytest.importorskip("torch", reason="GPU memory needs PyTorch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(GpuUnavailable, match="GPU 1 is asked for and 0 are here"):
        open_pool("gpu", 4096, 1)


def test_gpu_pools_poison_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool of a GPU behaves like that of the host (its tensor stands in host memory here)."""
    torch = pytest.importorskip("torch", reason="GPU memory needs PyTorch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda n, dtype, device: empty(n, dtype=dtype))
    gpu, host = open_pool("gpu", 4096, 0), HostPool(4096)
    assert (gpu.words() == host.words()).all()
    for pool in (gpu, host):
        pool.fill(pool_words(4096, 3))
        pool.poison(24, np.array([5, 0, 100], dtype=np.int32))
    assert (gpu.words() == host.words()).all()
    gpu.poison(24, None)
    assert (gpu.words() == POISON).all()


def test_a_gpu_is_kept_awake_and_nothing_piles_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """One spin at a time on a stream of its own; the next one only when that has ended."""
    torch = pytest.importorskip("torch", reason="GPU memory needs PyTorch")
    busy, spins = [False], []
    stream = SimpleNamespace(query=lambda: not busy[0])
    fakes = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "synchronize": lambda device: None,
        "device": lambda index: nullcontext(),
        "stream": lambda given: nullcontext(),
        "Stream": lambda: stream,
        "_sleep": spins.append,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda n, dtype, device: empty(n, dtype=dtype))
    pool = open_pool("gpu", 4096, 0)
    for busy[0] in (False, True, True, False):
        pool.awake()
    assert 2 == len(spins)


@pytest.mark.parametrize(("memory", "woken"), [("gpu", True), ("host", False)])
def test_the_serving_gpu_stays_awake(memory: str, woken: bool) -> None:
    """A thread wakes it until the peer has left; host memory needs none."""
    calls: list[float] = []
    enough = threading.Event()

    class Pool(HostPool):
        def awake(self) -> None:
            calls.append(time.monotonic())
            if len(calls) >= 3:
                enough.set()

    threads = threading.active_count()
    with kept_awake(Pool(4096), memory):
        assert woken == enough.wait(5.0 if woken else 0.05)
    assert threads == threading.active_count()
    assert woken == bool(calls)


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


# NIXL -------------------------------------------------------------------------------------------


def nixl_missing() -> str | None:
    """Say why NIXL cannot be used here, None when it can."""
    try:
        load_nixl()
    except OasisError as error:
        return str(error)
    return None


@pytest.mark.skipif("OASIS_TEST_NIXL" not in os.environ, reason="takes a minute: OASIS_TEST_NIXL=1")
@pytest.mark.skipif(nixl_missing() is not None, reason=f"{nixl_missing()}")
def test_nixl_between_two_processes(tmp_path: Path) -> None:
    """The command measures, verifies and writes a profile that reads back."""
    out = tmp_path / "here.yaml"
    done = subprocess.run(
        [sys.executable, "-m", "oasis_sim.cli.main", "calibrate", "--network", "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    # Exit 4: a busy machine may miss the bound, but every byte must be right.
    assert done.returncode in {0, 4}, done.stderr
    assert "measured" == read_network(out).origin
