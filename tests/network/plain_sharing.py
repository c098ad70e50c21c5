"""Max-min fair sharing as the definition tells it, in exact fractions: the twin of `sharing`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass
class PlainFlow:
    """One flow: the NICs it leaves and enters by, bytes left, its own limit, when it started."""

    nics: tuple[int, int]
    left: Fraction
    limit: Fraction
    start_ps: int


def plain_rates(flows: Sequence[PlainFlow], capacity: Sequence[Fraction]) -> list[Fraction]:
    """Return the fair rates: raise all together; whoever meets a limit or a full NIC stays."""
    rates = [Fraction(0)] * len(flows)
    rising = set(range(len(flows)))
    while rising:
        steps = [flows[i].limit - rates[i] for i in rising]
        users: dict[int, list[int]] = {}
        for i in rising:
            for nic in flows[i].nics:
                users.setdefault(nic, []).append(i)
        room = {
            nic: capacity[nic]
            - sum(rates[i] for i, flow in enumerate(flows) for own in flow.nics if own == nic)
            for nic in users
        }
        steps += [room[nic] / len(users[nic]) for nic in users]
        step = min(steps)
        for i in rising:
            rates[i] += step
        full = {nic for nic in users if room[nic] == step * len(users[nic])}
        rising = {
            i for i in rising if rates[i] < flows[i].limit and not full.intersection(flows[i].nics)
        }
    return rates


def plain_ends(flows: Sequence[PlainFlow], capacity: Sequence[Fraction]) -> list[Fraction]:
    """Return when each flow ends, in picoseconds; rates and capacities in bytes per picosecond."""
    ends = [Fraction(-1)] * len(flows)
    left = [flow.left for flow in flows]
    now = Fraction(0)
    while any(end < 0 for end in ends):
        live = [i for i, f in enumerate(flows) if ends[i] < 0 and f.start_ps <= now]
        rates = plain_rates([flows[i] for i in live], capacity)
        instants = [now + left[i] / rate for i, rate in zip(live, rates, strict=True) if rate]
        instants += [Fraction(f.start_ps) for f in flows if f.start_ps > now]
        later = min(instants)
        for i, rate in zip(live, rates, strict=True):
            left[i] -= rate * (later - now)
            if left[i] == 0:
                ends[i] = later
        now = later
    return ends
