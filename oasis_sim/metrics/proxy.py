"""How far quality proxies were from a model that really decodes sparsely: measured, read here.

``benchmarks/proxy_check.py --error-file`` writes the file from the results under ``validation/``.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any

_FILE = "proxy_error.json"


@lru_cache(maxsize=1)
def proxy_error() -> dict[str, Any]:
    """Return the largest errors seen of agreement and mass, and what they were seen on.

    ``lost_mass_rank_with_kl`` is Spearman's correlation over the settings of one recording, the
    least and the largest seen.
    """
    found = json.loads(files(__package__).joinpath(_FILE).read_text(encoding="utf-8"))
    largest = found["largest_error"]
    return {
        "topk_agreement": largest["overlap"],
        "attention_mass": largest["attention_mass"],
        "lost_mass_rank_with_kl": found["rank_of_lost_mass_with_kl"],
        "models": found["models"],
        "recordings": len(found["recordings"]),
        "steps": found["steps"],
        "origin": found["origin"],
    }
