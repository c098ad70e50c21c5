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
        ValidationCase(100, 16 * k, fetch_ratio=0.0),
        ValidationCase(138, 9 * k, fetch_ratio=0.02),
        ValidationCase(114, 16 * k, fetch_ratio=0.05),
        ValidationCase(150, 8 * k, fetch_ratio=0.03),
        ValidationCase(126, 10 * k, fetch_ratio=0.01),
        ValidationCase(68, 27 * k, fetch_ratio=0.05),
        ValidationCase(56, 22 * k, fetch_ratio=0.1),
        ValidationCase(18, 28 * k, fetch_ratio=0.2),
        ValidationCase(8, 27 * k, fetch_ratio=None),
        ValidationCase(152, 4 * k, fetch_ratio=0.05, budget_tokens=1024),
        ValidationCase(160, 6 * k, fetch_ratio=0.05),
        ValidationCase(28, 29 * k, fetch_ratio=0.05, budget_tokens=4096),
        ValidationCase(86, 19 * k, fetch_ratio=0.05, block_tokens=32),
        ValidationCase(36, 32 * k, fetch_ratio=0.02, block_tokens=32, budget_tokens=4096),
        ValidationCase(24, 18 * k, fetch_ratio=None, block_tokens=32),
        ValidationCase(44, 10 * k, fetch_ratio=0.01, transport="copy_engine"),
        ValidationCase(28, 20 * k, transport="copy_engine"),
        ValidationCase(60, 14 * k, fetch_ratio=0.02, transport="copy_engine", block_tokens=32),
        ValidationCase(38, 19 * k, transport="copy_engine", block_tokens=32),
        ValidationCase(20, 26 * k, fetch_ratio=0.2, transport="copy_engine", block_tokens=32),
        ValidationCase(32, 24 * k, fetch_ratio=0.1, transport="copy_engine", block_tokens=64),
        ValidationCase(20, 22 * k, fetch_ratio=0.02, transport="naive"),
        ValidationCase(30, 19 * k, transport="naive", block_tokens=32),
        ValidationCase(16, 22 * k, scheme=DENSE),
        ValidationCase(22, 16 * k, scheme=DENSE),
        ValidationCase(36, 13 * k, scheme=DENSE),
        ValidationCase(56, 9 * k, scheme=DENSE),
    )
