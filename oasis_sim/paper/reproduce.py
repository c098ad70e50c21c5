"""Every table and figure by name, and what each of them needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from oasis_sim.hardware import HardwareProfile, load_profile
from oasis_sim.paper import fig1, fig2, fig4, fig6, fig11, fig12, fig13, fig14, fig15, table2
from oasis_sim.paper.comparison import Comparison
from oasis_sim.paper.published import Published, load_published
from oasis_sim.paper.setup import Progress, Setup, no_progress
from oasis_sim.trace import load_trace


@dataclass(frozen=True, eq=False)
class Inputs:
    """Name what reproductions are run with; each input is loaded when one needs it.

    `context` replaces the prompt tokens of Figure 11 and the context of Figure 1.
    """

    profile_name: str
    engine: str
    trace_names: tuple[str, ...]
    context: int | None = None

    @cached_property
    def profile(self) -> HardwareProfile:
        """Return the hardware profile; the engine is one of its own, used or not."""
        found = load_profile(self.profile_name)
        found.engine(self.engine)
        return found

    @cached_property
    def published(self) -> Published:
        """Return the published numbers."""
        return load_published()

    @cached_property
    def setup(self) -> Setup:
        """Return profile, engine and traces."""
        return Setup(
            self.profile, self.engine, tuple(load_trace(name) for name in self.trace_names)
        )


def _fig1(inputs: Inputs, _: Progress) -> Comparison:
    return fig1.compare(inputs.profile, inputs.context or fig1.CONTEXT_TOKENS, inputs.engine)


def _fig2(inputs: Inputs, _: Progress) -> Comparison:
    return fig2.compare(inputs.profile, inputs.published)


def _fig4(inputs: Inputs, _: Progress) -> Comparison:
    return fig4.compare(inputs.setup, inputs.published)


def _fig6(inputs: Inputs, _: Progress) -> Comparison:
    return fig6.compare(inputs.setup, inputs.published)


def _table2(inputs: Inputs, progress: Progress) -> Comparison:
    return table2.compare(inputs.setup, inputs.published, progress)


def _fig11(inputs: Inputs, progress: Progress) -> Comparison:
    context = inputs.context or fig11.CONTEXT_TOKENS
    return fig11.compare(inputs.setup, inputs.published, progress, context)


def _fig13(inputs: Inputs, progress: Progress) -> Comparison:
    return fig13.compare(inputs.setup, inputs.published, progress)


def _fig12(inputs: Inputs, progress: Progress) -> Comparison:
    return fig12.compare(inputs.setup, inputs.published, progress)


def _fig14(inputs: Inputs, progress: Progress) -> Comparison:
    return fig14.compare(inputs.setup, inputs.published, progress)


def _fig15(inputs: Inputs, _: Progress) -> Comparison:
    return fig15.compare(inputs.setup, inputs.published)


REPRODUCTIONS: Mapping[str, Callable[[Inputs, Progress], Comparison]] = MappingProxyType(
    {
        fig1.NAME: _fig1,
        fig2.NAME: _fig2,
        fig4.NAME: _fig4,
        fig6.NAME: _fig6,
        table2.NAME: _table2,
        fig11.NAME: _fig11,
        fig12.NAME: _fig12,
        fig13.NAME: _fig13,
        fig14.NAME: _fig14,
        fig15.NAME: _fig15,
    }
)


def reproduce(name: str, inputs: Inputs, progress: Progress = no_progress) -> Comparison:
    """Simulate one table or figure beside its published numbers."""
    return REPRODUCTIONS[name](inputs, progress)
