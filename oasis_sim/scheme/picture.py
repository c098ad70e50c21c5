"""Draw the pipeline of a scheme as lines of text: time runs to the right, one line per stream."""

from __future__ import annotations

from dataclasses import dataclass, field

from oasis_sim.scheme.scheme import Scheme

QKV, ATTENTION, FFN = "[QKV]", "[attention]", "[output, FFN]"
REST = " other layers "
LANES = ("compute", "scan", "select", "transfer")
MARGIN = 10


@dataclass
class Canvas:
    """Collect labelled boxes per stream; columns count characters, drawn left to right."""

    lines: dict[str, str] = field(default_factory=dict)

    def put(self, lane: str, start: int, text: str) -> int:
        """Write a text no further left than `start` and after what is there; return its end."""
        line = self.lines.get(lane, "")
        self.lines[lane] = line.ljust(start) + text
        return len(self.lines[lane])

    def wait(self, lane: str, until: int) -> int:
        """Fill the time up to a column with dots: the stream waits."""
        line = self.lines.get(lane, "")
        self.lines[lane] = line.ljust(until, ".")
        return len(self.lines[lane])

    def drawn(self, heading: str) -> tuple[str, ...]:
        """Return the lines under a heading, each behind the name of its stream."""
        named = [f"{lane:<{MARGIN}}{self.lines[lane]}" for lane in LANES if lane in self.lines]
        return (f"{'':<{MARGIN}}{heading}".rstrip(), *named)


def picture(scheme: Scheme) -> tuple[str, ...]:
    """Return the picture of one layer, up to the attention that uses what was selected."""
    if not scheme.selects:
        return _dense()
    if scheme.lookahead == "none":
        return _on_demand(scheme)
    return _ahead(scheme)


def _dense() -> tuple[str, ...]:
    canvas = Canvas()
    canvas.put("compute", 0, QKV + "[attention to all KV]" + FFN)
    return canvas.drawn("layer l, step t")


def _on_demand(scheme: Scheme) -> tuple[str, ...]:
    """Draw selection and fetch between QKV and attention of the same layer."""
    canvas = Canvas()
    ready = _background(canvas, scheme, canvas.put("compute", 0, QKV))
    canvas.wait("compute", ready)
    canvas.put("compute", ready, ATTENTION + FFN)
    return canvas.drawn("layer l, step t")


def _ahead(scheme: Scheme) -> tuple[str, ...]:
    """Draw selection and fetch beside compute, for the layer's next step or for the next layer."""
    canvas = Canvas()
    begin = canvas.put("compute", 0, QKV)
    ready = _background(canvas, scheme, begin)
    canvas.put("compute", begin, ATTENTION + FFN)
    next_layer = scheme.lookahead == "one_layer"
    if not next_layer:
        # The other layers of the step pass by; the picture gives them the rest of the transfer.
        end = len(canvas.lines["compute"])
        room = max(len(REST), ready - len(QKV) - end)
        canvas.put("compute", end, REST.center(room, "-"))
    second = len(canvas.lines["compute"])
    end = canvas.put("compute", second, QKV)
    if scheme.correction_share:
        ready = canvas.put("transfer", max(end, len(canvas.lines["transfer"])), "[correct]")
    if ready > end:
        canvas.wait("compute", ready)
    canvas.put("compute", ready, ATTENTION + " ...")
    heading = "layer l, step t".ljust(second)
    return canvas.drawn(heading + ("layer l+1" if next_layer else "layer l, step t+1"))


def _background(canvas: Canvas, scheme: Scheme, start: int) -> int:
    """Draw scan, selection and transfer one after the other; return when the blocks are there."""
    if scheme.compressed_keys:
        start = canvas.put("scan", start, "[index of keys]")
    start = canvas.put("select", start, f"[best {scheme.chosen_blocks:,}]")
    return canvas.put("transfer", start, _fetch(scheme)) if scheme.offload else start


def _fetch(scheme: Scheme) -> str:
    if scheme.adaptive_cap:
        return "[as many blocks as hide]"
    if not scheme.reuse:
        return f"[{scheme.chosen_blocks:,} blocks, PCIe]"
    if scheme.admission_cap < scheme.chosen_blocks:
        return f"[{scheme.admission_cap:,} blocks at most, PCIe]"
    return "[missing blocks, PCIe]"
