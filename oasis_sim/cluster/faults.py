"""Faults of a disaggregated run: what breaks, where, when and for how long.

    link:node=decode0,at=60s,for=30s,share=0.1     all NICs of a node run at a share of their rate
    prefill:node=0,at=100s[,for=60s]               a prefill node dies (and comes back empty)
    completion:share=0.01,delay=50ms               completions of this share of transfers are late
    completion:share=0.01,lost                     they never come: sent again after the time-out
    timeout:after=5s                               when a node gives up waiting for a completion

Which transfers are hit is no chance: of n, counted per decode node, floor(n * share) are, so with
share 0.01 every hundredth and with 0.6 exactly three of five.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from oasis_sim.errors import InputError, UsageError
from oasis_sim.text import plain
from oasis_sim.units import PS_PER_S, parse_time

DEFAULT_TIMEOUT_PS = 5 * PS_PER_S
FOREVER_PS = 1 << 62
LEAST_SHARE = 0.001
FINEST_SHARE = 1_000_000
"""Shares of completions are the nearest fraction with no larger denominator."""


@dataclass(frozen=True)
class _Span:
    """Hold from `at_ps` until `until_ps`."""

    at_ps: int
    until_ps: int

    def holds(self, now_ps: int) -> bool:
        """Say whether the fault is there at a time; it is gone at `until_ps`."""
        return self.at_ps <= now_ps < self.until_ps


@dataclass(frozen=True)
class LinkFault(_Span):
    """Let the NICs of a node run at a share of their rate from `at_ps` until `until_ps`."""

    node: str
    share: float


@dataclass(frozen=True)
class PrefillFault(_Span):
    """Stop a prefill node at `at_ps`, with all it holds; at `until_ps` it is back, empty."""

    node: int


@dataclass(frozen=True)
class CompletionFault:
    """Delay a share of a decode node's completions; lost ones need the time-out."""

    share: Fraction
    delay_ps: int
    lost: bool

    def hits(self, number: int) -> bool:
        """Say whether completion `number`, counted from 1, is one of the share."""
        parts, of = self.share.numerator, self.share.denominator
        return number * parts // of > (number - 1) * parts // of


@dataclass(frozen=True)
class Faults:
    """Hold all faults of a run; `texts` are how they were given."""

    links: tuple[LinkFault, ...] = ()
    prefill: tuple[PrefillFault, ...] = ()
    completion: CompletionFault | None = None
    timeout_ps: int = DEFAULT_TIMEOUT_PS
    texts: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        """Say whether anything breaks."""
        return bool(self.links or self.prefill or self.completion)

    @property
    def late_fetches(self) -> Fraction:
        """Return the share of fetches that are late."""
        return self.completion.share if self.completion else Fraction(0)

    @property
    def fetch_delay_ps(self) -> int:
        """Return by how much a hit fetch is late."""
        if self.completion is None:
            return 0
        return self.timeout_ps if self.completion.lost else self.completion.delay_ps


def read_faults(texts: Sequence[str], prefill: int, decode: int) -> Faults:
    """Read `--fault` options for a cluster of so many nodes; raise UsageError that says how."""
    links, deaths = list[LinkFault](), list[PrefillFault]()
    completion, timeout = None, DEFAULT_TIMEOUT_PS
    once: dict[str, str] = {}
    for text in texts:
        kind, parts = _parts(text)
        if kind in once:
            raise _wrong(text, f"is a second {kind}, after '{plain(once[kind])}'; give one")
        if kind == "link":
            links.append(_link(text, parts, prefill, decode))
        elif kind == "prefill":
            deaths.append(_death(text, parts, prefill))
        elif kind == "completion":
            once[kind], completion = text, _completion(text, parts)
        elif kind == "timeout":
            _only(text, parts, ("after",), ())
            once[kind], timeout = text, _time(text, parts, "after")
        else:
            raise _wrong(text, "starts with none of link, prefill, completion, timeout")
    return Faults(tuple(links), tuple(deaths), completion, timeout, tuple(texts))


def node_number(name: str, prefill: int, decode: int) -> int | None:
    """Return the place of `prefillN` or `decodeN` on the network; None if there is no such node."""
    for kind, first, count in (("prefill", 0, prefill), ("decode", prefill, decode)):
        digits = name.removeprefix(kind)
        if digits != name and digits.isascii() and digits.isdigit() and int(digits) < count:
            return first + int(digits)
    return None


def _parts(text: str) -> tuple[str, dict[str, str]]:
    kind, _, rest = text.partition(":")
    parts: dict[str, str] = {}
    for part in rest.split(",") if rest else ():
        name, equals, value = part.partition("=")
        key = name.strip()
        if key in parts:
            raise _wrong(text, f"says {plain(key)} twice")
        if equals and key == "lost":
            raise _wrong(text, "gives lost a value; write lost alone, or leave it out")
        parts[key] = value.strip()
    return kind.strip(), parts


def _link(text: str, parts: Mapping[str, str], prefill: int, decode: int) -> LinkFault:
    _only(text, parts, ("node", "at", "share"), ("for",))
    if node_number(parts["node"], prefill, decode) is None:
        raise _wrong(
            text,
            f"names no node: use prefill0 to prefill{prefill - 1}, decode0 to decode{decode - 1}",
        )
    at = _time(text, parts, "at")
    share = _share(text, parts)
    return LinkFault(at, _until(text, parts, at), parts["node"], share)


def _death(text: str, parts: Mapping[str, str], prefill: int) -> PrefillFault:
    _only(text, parts, ("node", "at"), ("for",))
    node = node_number(f"prefill{parts['node']}", prefill, 0)
    if node is None:
        raise _wrong(text, f"names no prefill node: use 0 to {prefill - 1}")
    at = _time(text, parts, "at")
    return PrefillFault(at, _until(text, parts, at), node)


def _completion(text: str, parts: Mapping[str, str]) -> CompletionFault:
    _only(text, parts, ("share",), ("delay", "lost"))
    share = Fraction(_share(text, parts)).limit_denominator(FINEST_SHARE)
    if ("delay" in parts) == ("lost" in parts):
        raise _wrong(text, "needs delay=TIME or lost")
    lost = "lost" in parts
    if lost and share == 1:
        raise _wrong(text, "loses every completion, so nothing ever arrives; use a share below 1")
    return CompletionFault(share, 0 if lost else _time(text, parts, "delay"), lost)


def _until(text: str, parts: Mapping[str, str], at_ps: int) -> int:
    return at_ps + _time(text, parts, "for") if "for" in parts else FOREVER_PS


def _time(text: str, parts: Mapping[str, str], key: str) -> int:
    return int(_value(text, parts, key, parse_time))


def _share(text: str, parts: Mapping[str, str]) -> float:
    share = _value(text, parts, "share", float)
    if not LEAST_SHARE <= share <= 1:
        raise _wrong(text, "has a share outside 0.001 to 1")
    return share


def _value(text: str, parts: Mapping[str, str], key: str, parse: Callable[[str], float]) -> float:
    try:
        return parse(parts[key])
    except (ValueError, InputError) as error:
        raise _wrong(text, f"has an unreadable {key} ({plain(str(error))})") from None


def _only(text: str, parts: Mapping[str, str], needed: Sequence[str], free: Sequence[str]) -> None:
    missing = [key for key in needed if key not in parts]
    unknown = [key for key in parts if key not in (*needed, *free)]
    if missing:
        raise _wrong(text, f"lacks {', '.join(missing)}")
    if unknown:
        raise _wrong(text, f"does not know {plain(', '.join(unknown))}")


def _wrong(text: str, problem: str) -> UsageError:
    return UsageError(
        f"--fault '{plain(text)}' {problem}; "
        "for example link:node=decode0,at=60s,for=30s,share=0.1, "
        "prefill:node=0,at=100s, completion:share=0.01,delay=50ms or completion:share=0.01,lost"
    )
