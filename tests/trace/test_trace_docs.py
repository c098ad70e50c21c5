"""The documented wire example is a real trace, and the documented keys are the known ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from oasis_sim.trace import read_trace
from oasis_sim.trace.build import array_type
from oasis_sim.trace.plausible import doubts

PAGE = Path(__file__).parents[2] / "docs" / "trace-format.md"


def test_the_example_can_be_read(tmp_path: Path) -> None:
    """Copied from the page, it is valid and plausible, without a warning."""
    found = re.search(r"```jsonl\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    (tmp_path / "example.jsonl").write_text(found[1], encoding="utf-8")
    trace = read_trace(tmp_path / "example.jsonl")
    assert () == doubts(trace)
    assert (2, [11, 12, 13]) == (trace.steps, trace.token.tolist())


@pytest.mark.parametrize(
    "key",
    ["position", "token", "use_order", "pred_order.x", "accepted.x", "draft_token.x", "mass"],
)
def test_every_array_is_documented(key: str) -> None:
    """The table of arrays names each key that the reader knows."""
    assert array_type(key) is not None
    assert f"| `{key.replace('.x', '.NAME')}` |" in PAGE.read_text(encoding="utf-8")
