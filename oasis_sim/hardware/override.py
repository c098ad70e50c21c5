"""Capacities that a user knows better than the profile: HBM, and the link to host memory."""

from __future__ import annotations

from dataclasses import replace

from oasis_sim.errors import InputError, UsageError
from oasis_sim.fileio import printable
from oasis_sim.hardware.load import on_link
from oasis_sim.hardware.profile import HardwareProfile, Link
from oasis_sim.hardware.roofline import roofline_costs
from oasis_sim.units import GB, format_bandwidth, parse_bandwidth

PCIE_X16 = {"4": 32 * GB, "5": 64 * GB, "6": 128 * GB}
"""Nominal bytes per second of 16 lanes, each way: 16, 32 and 64 GT/s, a bit per transfer and
lane, as the generations of PCI Express define them."""

USABLE_SHARE = 55 / 64
"""What one large DMA reached of the nominal rate of PCIe 5.0 on an H200 (profile h200)."""


def with_capacities(
    profile: HardwareProfile, hbm_bytes: int | None, host_link: str | None
) -> HardwareProfile:
    """Return a profile with another HBM capacity and another link to host memory (None: as is).

    `host_link` is a PCIe generation, or the measured rate of a large copy such as `52 GB/s`.
    Transports keep their share of the link. Raise UsageError for what is no link.
    """
    sources = dict(profile.sources)
    if hbm_bytes is not None:
        sources["gpu.hbm_capacity"] = "given by the user (--hbm-memory)"
        profile = replace(profile, gpu=replace(profile.gpu, hbm_bytes=hbm_bytes), sources=sources)
    if host_link is None:
        return profile
    link, source = _link(profile.pcie, host_link)
    sources |= {"pcie.bandwidth": source, "pcie.usable_bandwidth": source}
    factor = link.usable_bytes_per_s / profile.pcie.usable_bytes_per_s
    engines = {
        name: roofline_costs(link) if name == "roofline" else on_link(costs, factor)
        for name, costs in profile.engines.items()
    }
    return replace(profile, pcie=link, engines=engines, sources=sources)


def _link(old: Link, text: str) -> tuple[Link, str]:
    """Return the link that a text names, and where its numbers come from."""
    if text in PCIE_X16:
        nominal = PCIE_X16[text]
        source = f"PCIe {text}.0 x16 (--pcie); 86 % of it usable, as on an H200 over PCIe 5.0"
        return Link(nominal, nominal * USABLE_SHARE, old.latency_ps), source
    try:
        usable = parse_bandwidth(text)
    except InputError:
        raise UsageError(
            f"--pcie {printable(text, 40)!r}: write 4, 5 or 6 for PCIe x16 of that generation, or "
            "the measured rate of a large copy, such as '52 GB/s'"
        ) from None
    if not 0 < usable <= old.bytes_per_s:
        raise UsageError(
            f"--pcie {printable(text, 40)!r}: a large copy moves between 0 and the link's nominal "
            f"{format_bandwidth(old.bytes_per_s)}; name the generation (--pcie 6) or a profile "
            "with that link"
        )
    return Link(old.bytes_per_s, usable, old.latency_ps), "measured by the user (--pcie)"
