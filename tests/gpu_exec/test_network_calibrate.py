"""`calibrate --network`: options that are refused; NIXL where it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gpu_exec.network.nixl_side import load_nixl, ucx_settings
from oasis_sim.cli.main import main
from oasis_sim.errors import OasisError
from oasis_sim.network import read_network

ROOT = Path(__file__).parents[2]


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
        assert "pip install -e '.[network]'" in capsys.readouterr().err
    assert not out.exists()


def test_settings_of_ucx_are_kept() -> None:
    """What the environment tells UCX is part of a measurement."""
    assert "UCX defaults" == ucx_settings({"PATH": "/"})
    assert "UCX_NET_DEVICES=a UCX_TLS=tcp" == ucx_settings(
        {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "a"}
    )


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
