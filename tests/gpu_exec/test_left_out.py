"""Replays that leave all-reduces out: the run simulated again without them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gpu_exec.compare import collective_ms
from gpu_exec.left_out import without_all_reduces
from gpu_exec.run_dir import load_run_schedule
from oasis_sim.cli.main import main
from oasis_sim.engine.schedule import Schedule
from oasis_sim.report.config import read_config
from oasis_sim.units import PS_PER_MS

PROFILE = Path(__file__).parents[2] / "hw_profiles" / "h200.yaml"
RUN = ["run", "--engine", "gpu_exec", "--tp", "2", "--host-memory", "500GB", "--quiet"]
RUN += ["--requests", "2", "--concurrency", "2", "--context", "4096", "--output-tokens", "48"]
REPLAY = ["replay", "--device", "cpu", "--devices", "2", "--quiet", "--format", "json"]


def run(path: Path, profile: Path, ratio: str, *more: str) -> Schedule:
    """Simulate a small run on two GPUs and return its schedule."""
    asked = ["--profile", str(profile), "--fetch-ratio", ratio, *more]
    assert 0 == main([*RUN, *asked, "--out", str(path)])
    return load_run_schedule(path)


def test_replay_without_all_reduces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A step of which nothing slows the rest is shorter by its all-reduces; the output says so.

    A profile that has changed since the run cannot say what it takes.
    """
    profile, path = tmp_path / "h200.yaml", tmp_path / "run"
    text = PROFILE.read_text(encoding="utf-8")
    alone = "selection_slowdown: {linear: {rows: [1], factor: [1]}, attention: 1, prediction: 1}"
    profile.write_text(re.sub(r"selection_slowdown: .*", alone, text), encoding="utf-8")
    whole = run(path, profile, "0")
    capsys.readouterr()
    assert 0 == main([*REPLAY, "--no-all-reduce", str(path)])
    report = json.loads(capsys.readouterr().out)
    shorter = whole.sim_step_ps / PS_PER_MS - collective_ms(whole)
    assert [row["simulated_ms"] for row in report["steps"]] == pytest.approx(shorter)
    assert "all_reduce" not in {row["stage"] for row in report["stages"]}
    assert "simulated again without them" in report["notes"][0]
    changed = profile.read_text(encoding="utf-8").replace("hbm_share: 0.9", "hbm_share: 0.8")
    profile.write_text(changed, encoding="utf-8")
    assert 3 == main([*REPLAY, "--no-all-reduce", str(path)])
    assert "this input has changed" in capsys.readouterr().err


def test_where_the_link_decides(tmp_path: Path) -> None:
    """A step that waits for its transfers gets less shorter than its all-reduces took."""
    path = tmp_path / "run"
    whole = run(path, PROFILE, "0.2", "--pcie", "3 GB/s")
    alone = without_all_reduces(read_config(path / "config.yaml").spec.scenario())
    assert min(whole.moves, alone.moves) > 0
    assert 0 == collective_ms(alone).max()
    with_moves = [s.sim_step_ps[s.step_moves() > 0].mean() for s in (whole, alone)]
    shorter = float(with_moves[0] - with_moves[1]) / PS_PER_MS
    assert shorter < 0.9 * float(collective_ms(whole).mean())
