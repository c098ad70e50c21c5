"""What a GPU costs per hour: the user's own file, since no price here would stay true."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from oasis_sim.fileio import Fields, did_you_mean, load_yaml, printable, shipped_inputs

FORMAT = "oasis-prices"
SECONDS_PER_HOUR = 3600
MILLION = 1_000_000


@dataclass(frozen=True)
class Prices:
    """Hold the price of one GPU-hour by profile, in one currency."""

    currency: str = ""
    gpu_hour: Mapping[str, float] = field(default_factory=dict)

    def per_million_tokens(self, profile: str, gpus: int, tokens_per_s: float) -> float | None:
        """Return the cost of a million output tokens, None without a price for the card."""
        if profile not in self.gpu_hour or tokens_per_s <= 0:
            return None
        return self.gpu_hour[profile] * gpus / SECONDS_PER_HOUR / tokens_per_s * MILLION

    def unknown(self, planned: Collection[str]) -> list[str]:
        """Say which names of the file are no card: neither planned for nor a built-in profile."""
        known = sorted({*planned, *shipped_inputs("profile")})
        return [
            f"the price of {printable(name, 60)} is not used: no profile has this name"
            f"{did_you_mean(name, known)}"
            for name in self.gpu_hour
            if name not in known
        ]


def read_prices(path: str) -> Prices:
    """Read a price file; raise InputError with every mistake and its line."""
    fields = Fields.of(load_yaml(path))
    fields.text("format", FORMAT, choices=(FORMAT,))
    fields.integer("version", 1, low=1, high=1)
    currency = fields.text("currency")
    section = fields.child("gpu_hour")
    names = section.keys()
    prices = {name: section.number(name, low=0.0, high=1e6) for name in names}
    fields.finish()
    return Prices(currency, prices)
