"""Tiny random-weight models (those of the recorder's tests), and a study's start on them."""

from __future__ import annotations

import pytest

from tests.record.conftest import model_folder, tiny_model, tiny_prompt, tiny_text

__all__ = ["model_folder", "text_file", "tiny_model", "tiny_prompt"]


@pytest.fixture
def text_file(tmp_path):
    """Return a text that the tiny model's tokenizer knows."""
    path = tmp_path / "keeper.txt"
    path.write_text(tiny_text(150))
    return path
