"""The wheel holds everything and works outside the repository; so does a bare checkout."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COPIED = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "oasis_sim",
    "gpu_exec",
    "hw_profiles",
    "traces",
)

LIST_DATA = """
import oasis_sim
from oasis_sim.fileio import shipped_inputs
from oasis_sim.hardware import load_profile
from oasis_sim.model import load_model, model_names
from oasis_sim.scheme import load_scheme, scheme_names
print(oasis_sim.__file__)
print(*[load_profile(name).name for name in shipped_inputs("profile")])
print(*[load_model(name).name for name in model_names()])
print(*[load_scheme(name).name for name in scheme_names()])
print(*shipped_inputs("trace"))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy and install it, alone, in a clean environment; no network."""
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    source.mkdir()
    for name in COPIED:
        subprocess.run(["cp", "-R", str(ROOT / name), str(source / name)], check=True)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", place, source)
    (wheel,) = place.glob("oasis_sim-*.whl")
    environment = place / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--quiet", wheel)
    (site,) = (environment / "lib").glob("python3*/site-packages")
    # The dependencies are those of this environment; appended, so that the wheel comes first.
    dependencies = [path for path in sys.path if path.endswith("site-packages")]
    (site / "dependencies.pth").write_text("\n".join(dependencies) + "\n", encoding="utf-8")
    return python


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a program and return its output; show all of it when it fails."""
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


def test_data_is_found(installed: Path, tmp_path: Path) -> None:
    """The installed package finds and reads its profiles, models, schemes and traces."""
    place, profiles, models, schemes, _traces = run(
        installed, "-I", "-c", LIST_DATA, cwd=tmp_path
    ).splitlines()
    assert "environment" in place
    assert str(ROOT) not in place
    assert {"h100", "h200"} <= set(profiles.split())
    assert {"Qwen3-8B", "Qwen3-235B-A22B", "SmolLM2-135M"} <= set(models.split())
    assert {"oasis", "dense", "on-demand", "previous-token", "oracle"} <= set(schemes.split())


def test_command_is_installed(installed: Path, tmp_path: Path) -> None:
    """The console script answers outside the repository."""
    assert "Usage:" in run(installed.parent / "oasis-sim", "--help", cwd=tmp_path)


def test_main_job_runs(installed: Path, tmp_path: Path) -> None:
    """The README's first command works with the installed wheel, outside the repository."""
    out = tmp_path / "run"
    options = ("--profile", "h100", "--trace", "aime.jsonl", "--quiet", "--out", out)
    run(installed.parent / "oasis-sim", "run", *options, cwd=tmp_path)
    assert (out / "manifest.json").is_file()


def test_bare_checkout_runs(tmp_path: Path) -> None:
    """``python cli.py`` works where the package is not installed."""
    output = run(sys.executable, ROOT / "cli.py", "--help", cwd=tmp_path)
    assert "Usage:" in output
