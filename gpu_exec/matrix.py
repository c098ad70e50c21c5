"""The validation matrix: configurations that calibration never measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

SPARSE, DENSE = "oasis", "dense"


@dataclass(frozen=True)
class ValidationCase:
    """Fix one configuration: `fetch_ratio` None means that every miss is fetched."""

    batch: int
    context_tokens: int
    scheme: str = SPARSE
    fetch_ratio: float | None = 0.05
    block_tokens: int = 16
    budget_tokens: int = 2048
    transport: str = "sm_gather"

    def config(self) -> dict[str, Any]:
        """Return the configuration as the validation file writes it."""
        config = asdict(self)
        if self.scheme == DENSE:
            for key in ("fetch_ratio", "budget_tokens", "transport"):
                config[key] = None
        elif self.fetch_ratio is None:
            config["fetch_ratio"] = "all"
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ValidationCase:
        """Return the case that a validation file's configuration names."""
        given = {key: value for key, value in config.items() if value is not None}
        if given.get("fetch_ratio") == "all":
            given["fetch_ratio"] = None
        return cls(**given)

    def label(self) -> str:
        """Return a short name for tables and messages."""
        if self.scheme == DENSE:
            return f"dense b{self.batch} {self.context_tokens // 1024}K"
        ratio = "all" if self.fetch_ratio is None else f"{self.fetch_ratio:g}"
        return (
            f"{self.scheme} b{self.batch} {self.context_tokens // 1024}K r{ratio} "
            f"blk{self.block_tokens} bud{self.budget_tokens} {self.transport}"
        )


def validation_matrix() -> tuple[ValidationCase, ...]:
    """Return the cases: batch 8-160, context 4K-32K, every ratio class, block and transport."""
    k = 1024
    return (
        ValidationCase(102, 15 * k, fetch_ratio=0.0),
        ValidationCase(134, 10 * k, fetch_ratio=0.02),
        ValidationCase(116, 17 * k, fetch_ratio=0.05),
        ValidationCase(146, 8 * k, fetch_ratio=0.03),
        ValidationCase(122, 13 * k, fetch_ratio=0.01),
        ValidationCase(66, 30 * k, fetch_ratio=0.05),
        ValidationCase(54, 21 * k, fetch_ratio=0.1),
        ValidationCase(20, 29 * k, fetch_ratio=0.2),
        ValidationCase(8, 30 * k, fetch_ratio=None),
        ValidationCase(156, 4 * k, fetch_ratio=0.05, budget_tokens=1024),
        ValidationCase(160, 7 * k, fetch_ratio=0.05),
        ValidationCase(26, 31 * k, fetch_ratio=0.05, budget_tokens=4096),
        ValidationCase(90, 18 * k, fetch_ratio=0.05, block_tokens=32),
        ValidationCase(34, 32 * k, fetch_ratio=0.02, block_tokens=32, budget_tokens=4096),
        ValidationCase(22, 19 * k, fetch_ratio=None, block_tokens=32),
        ValidationCase(42, 13 * k, fetch_ratio=0.01, transport="copy_engine"),
        ValidationCase(30, 22 * k, transport="copy_engine"),
        ValidationCase(14, 25 * k, fetch_ratio=0.2, transport="copy_engine"),
        ValidationCase(58, 15 * k, fetch_ratio=0.02, transport="copy_engine", block_tokens=32),
        ValidationCase(40, 18 * k, transport="copy_engine", block_tokens=32),
        ValidationCase(22, 25 * k, fetch_ratio=0.2, transport="copy_engine", block_tokens=32),
        ValidationCase(18, 21 * k, fetch_ratio=0.02, transport="naive"),
        ValidationCase(26, 20 * k, transport="naive", block_tokens=32),
        ValidationCase(14, 21 * k, scheme=DENSE),
        ValidationCase(20, 17 * k, scheme=DENSE),
        ValidationCase(34, 15 * k, scheme=DENSE),
        ValidationCase(60, 8 * k, scheme=DENSE),
    )
