"""Network profile files: each mistake is told with file, line, field and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oasis_sim.cli.main import main
from oasis_sim.errors import InputError
from oasis_sim.fileio import dump_yaml, shipped_inputs
from oasis_sim.network import load_network, read_network
from oasis_sim.network.write import network_yaml

ROCE = shipped_inputs("network")["roce-2x200"]


def content() -> dict[str, Any]:
    """Return the plain content of a shipped profile."""
    found: dict[str, Any] = yaml.safe_load(ROCE.read_text())
    return found


def edited(tmp_path: Path, dotted: str, value: object) -> Path:
    """Write a shipped profile with one dotted key replaced (None removes it)."""
    data = content()
    *path, last = dotted.split(".")
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


@pytest.mark.parametrize(
    ("key", "value", "field", "said"),
    [
        ("schema_version", 2, "schema_version", "use 1 to 1"),
        ("name", None, "name", "is missing"),
        ("title", 5, "title", "write text"),
        ("origin", "hearsay", "origin", "use one of datasheet, published, measured"),
        ("nics.value", 0, "nics.value", "use 1 to 64"),
        ("nics.value", 1, "rails.value", "exceeds the 1 NICs"),
        ("nics.source", None, "nics.source", "is missing"),
        ("rails.value", 2.5, "rails.value", "whole number"),
        ("nic.send.value", "400 Gb/s", "nic.send.value", "use GB/s, GiB/s or Gbit/s"),
        ("nic.send.value", "0 GB/s", "nic.send.value", "use 1 MB/s to 1 PB/s"),
        ("nic.receive.value", 50, "nic.receive.value", "has no unit"),
        ("nic.receive", None, "nic.receive", "is missing"),
        ("nic", None, "nic", "is missing"),
        ("latency.value", "1 h", "latency.value", "use 0 ps to 1 s"),
        ("latency.value", "-1 us", "latency.value", "is negative"),
        ("posting.value", "2 s", "posting.value", "use 0 ps to 1 s"),
        ("posting.source", "", "posting.source", "write text"),
        ("completion.value", "1 lightyear", "completion.value", "is not a unit of time"),
        ("efficiency.bytes", ["1 KiB"], "efficiency.bytes", "has 1 points for 4 values"),
        ("efficiency.share", [0.1, 0.2, 0.3, 1.5], "efficiency.share[3]", "out of range"),
        ("efficiency.share", [0, 0.1, 0.2, 0.3], "efficiency.share[0]", "out of range"),
        (
            "efficiency.bytes",
            ["1 KiB", "1 KiB", "2 KiB", "3 KiB"],
            "efficiency.bytes",
            "sort the points",
        ),
        ("efficiency.source", None, "efficiency.source", "is missing"),
        ("coalesce.value", "0 B", "coalesce.value", "use 1 B to 1 TB"),
        ("remote_capacity.value", "lots", "remote_capacity.value", "write a number and GB or GiB"),
        ("nic.colour", "red", "nic.colour", "is not a known key"),
        ("latancy", "5 us", "latancy", "is not a known key"),
    ],
)
def test_each_mistake_names_file_line_and_field(
    tmp_path: Path, key: str, value: object, field: str, said: str
) -> None:
    """One message, with the line, and what to do."""
    with pytest.raises(InputError) as caught:
        read_network(edited(tmp_path, key, value))
    message = str(caught.value)
    assert 3 == caught.value.exit_code
    assert "edited.yaml:" in message
    assert f"{field}: " in message
    assert said in message


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    """Three mistakes, three numbered lines."""
    path = edited(tmp_path, "latency.value", "1 h")
    text = path.read_text().replace("origin: published", "origin: me").replace("0 us", "9 s")
    path.write_text(text)
    with pytest.raises(InputError, match=r"3 mistakes:") as caught:
        read_network(path)
    for number in ("(1)", "(2)", "(3)"):
        assert number in str(caught.value)


@pytest.mark.parametrize("text", ["", "- a\n", "a: [", "a: &x 1\n", "\0", "schema_version: 1\n"])
def test_what_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    """Empty, broken or other YAML is bad input."""
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"odd\.yaml"):
        read_network(path)


def test_an_unknown_name_lists_what_is_built_in(capsys: pytest.CaptureFixture[str]) -> None:
    """The nearest name is proposed."""
    assert 3 == main(["networks", "show", "roce400"])
    assert "did you mean 'roce-400'" in capsys.readouterr().err


def test_a_network_of_ones_own_is_taken_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file beside the user comes before the shipped ones, with and without its suffix."""
    monkeypatch.chdir(tmp_path)
    data = content()
    data["nic"]["send"]["value"] = data["nic"]["receive"]["value"] = "8 GB/s"
    (tmp_path / "roce-400.yaml").write_text(dump_yaml(data))
    for name in ("roce-400", "roce-400.yaml", "./roce-400.yaml"):
        assert 8 * 10**9 == load_network(name).rail_bytes_per_s
    assert 0 == main(["roofline", "--network", "roce-400", "--format", "json", "--quiet"])
    assert '"bandwidth_gb_per_s": 16.0' in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(shipped_inputs("network")))
def test_writing_and_reading_are_inverse(name: str, tmp_path: Path) -> None:
    """Every shipped profile comes back from its written form, sources included."""
    network = load_network(name)
    path = tmp_path / "again.yaml"
    path.write_text(network_yaml(network, ["a comment"]))
    assert network == read_network(path)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=12),
    st.sampled_from(["1 GB/s", "5 us", "256 KB", "1e400 s", "nan us", "1 h"]),
    st.lists(st.sampled_from([1, "1 KiB", 0.5, None, {}]), max_size=3),
    st.dictionaries(st.sampled_from(["value", "source", "bytes", "x"]), st.just(1), max_size=2),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from([*content(), "nic.send", "efficiency.bytes", "efficiency.share", "extra"]),
    VALUES,
    st.booleans(),
)
def test_any_value_is_read_or_refused(
    tmp_path: Path, key: str, value: object, inside: bool
) -> None:
    """Whatever stands in a field, the reader returns a usable profile or an InputError."""
    data = content()
    *path, last = key.split(".")
    place = data
    for part in path:
        place = place[part]
    if inside and isinstance(place.get(last), dict):
        place[last]["value"] = value
    else:
        place[last] = value
    file = tmp_path / "fuzz.yaml"
    file.write_text(yaml.safe_dump(data))
    try:
        network = read_network(file)
    except InputError as error:
        assert "fuzz.yaml" in str(error)
    else:
        assert 1 <= network.rails <= network.nics
        assert network.rail_bytes_per_s > 0
        assert all(0 < share <= 1 for share in network.efficiency.y)
