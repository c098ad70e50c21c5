"""The rows about quality of a run's table: proxies, and the error that was seen of them."""

from __future__ import annotations

from oasis_sim.report.numbers import percent
from oasis_sim.report.row import Row, Summary


def quality_rows(summary: Summary) -> tuple[Row, ...]:
    """Return the proxies that a run measured, and how far such proxies were off."""
    quality = summary["quality"]
    mass, lost = quality["attention_mass"], quality["lost_mass"]
    rows = (
        ("Top-K agreement (proxy)", quality["topk_agreement"], "attended set against the true one"),
        (
            "Attention mass (proxy)",
            mass["mean"],
            f"captured by the attended set; 5th percentile {percent(mass['p5'])}",
        ),
        (
            "Lost mass (proxy)",
            lost["mean"],
            f"missed by the attended set; 95th percentile {percent(lost['p95'])}",
        ),
    )
    shown = tuple(
        Row(label, percent(value), detail) for label, value, detail in rows if value is not None
    )
    return (*shown, *_proxy_error(quality.get("proxy_error")))


def _proxy_error(error: Summary | None) -> tuple[Row, ...]:
    """Say how far such proxies were from models that really decoded sparsely."""
    if error is None:
        return ()
    rank = error["lost_mass_rank_with_kl"]
    return (
        Row(
            "Error seen (proxy)",
            percent(error["topk_agreement"]),
            f"of agreement, {percent(error['attention_mass'])} of mass: the most that traces were "
            f"off beside real sparse decodes ({error['origin']})",
        ),
        Row(
            "Rank with KL (proxy)",
            f"{rank['low']:.2f}",
            f"to {rank['high']:.2f}: rank correlation of lost mass there; recordings: "
            f"{error['recordings']}, of {', '.join(error['models'])}",
        ),
    )
