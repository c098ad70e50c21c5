"""Write YAML that this program reads back as it was, byte for byte the same each time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from oasis_sim.fileio.document import plain_scalar

_WIDTH = 100


def dump_yaml(value: Mapping[str, Any]) -> str:
    """Return a mapping as YAML in its own order; texts that look like numbers are quoted."""
    return yaml.dump(
        dict(value),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=_WIDTH,
    )


class _Dumper(yaml.SafeDumper):
    """Write without anchors, and texts so that the strict reader takes them as texts."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        """Write a value again where it stands a second time."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # PyYAML leaves 1e9 and 08 bare, to its own reader they are no numbers, and folds the
    # line breaks of Unicode; double quotes escape what does not print.
    is_plain = text.isprintable() and isinstance(plain_scalar(text), str)
    style = None if is_plain else '"'
    if not text.isprintable():
        # Only this style escapes; PyYAML would fold a next-line character into a space.
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
