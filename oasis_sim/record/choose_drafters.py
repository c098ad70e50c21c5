"""Turn the names that a user gives into drafters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from oasis_sim.errors import InputError
from oasis_sim.fileio import printable
from oasis_sim.record.backend import RecordedModel, load_recorded_model
from oasis_sim.record.draft_model import ModelDrafter
from oasis_sim.record.drafters import Drafter, NgramDrafter, OracleDrafter, SkipDrafter
from oasis_sim.record.eagle_drafter import EagleDrafter
from oasis_sim.record.eagle_files import load_eagle_head
from oasis_sim.record.options import parse_drafter


def choose_drafters(names: Sequence[str], model: RecordedModel) -> tuple[Drafter, ...]:
    """Return the drafters of some names, as in the option ``--drafter``; files are loaded.

    Raises InputError for an unknown name, for what does not fit the model, and for a name that
    is given twice.
    """
    drafters = tuple(_drafter(name, model) for name in names)
    found = [drafter.name for drafter in drafters]
    if len(set(found)) != len(found):
        raise InputError("names a drafter twice", field="drafter", fix="name each once")
    return drafters


def _drafter(name: str, model: RecordedModel) -> Drafter:
    kind, _, place = name.partition(":")
    if kind == "oracle" and not place:
        return OracleDrafter()
    if kind == "model" and place:
        threads = torch.get_num_threads()
        drafter = ModelDrafter(
            load_recorded_model(place, dtype=model.dtype, threads=threads, device=model.device)
        )
        drafter.check(model)
        return drafter
    if kind == "eagle3" and place:
        head, sha256 = load_eagle_head(Path(place), model)
        return EagleDrafter(head, printable(Path(place).resolve().name), sha256)
    full_name, skipped = parse_drafter(name, model.layers)
    return SkipDrafter(full_name, skipped) if skipped else NgramDrafter(full_name)
