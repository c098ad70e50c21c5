"""From the arrays of a file to a checked trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oasis_sim.errors import InputError
from oasis_sim.fileio import printable
from oasis_sim.trace.header import MOST_BLOCKS, check_header, is_drafter_name, with_integers
from oasis_sim.trace.trace import NO_BLOCK, AttentionTrace, Order
from oasis_sim.units import GIB

PREFIXES = ("pred_order", "accepted", "draft_token")
_TYPES: Mapping[str, type[np.integer[Any]]] = {
    "position": np.int32,
    "token": np.int32,
    "use_order": np.uint16,
    "mass": np.uint8,
    "pred_order": np.uint16,
    "accepted": np.uint8,
    "draft_token": np.int32,
}
CAP_BYTES = GIB
"""The most that the arrays of one trace may take."""
Arrays = Mapping[str, NDArray[Any]]


def array_type(key: str) -> type[np.integer[Any]] | None:
    """Return the element type of an array of the schema; None for an unknown key."""
    prefix, dot, name = key.partition(".")
    if dot and (prefix not in PREFIXES or not is_drafter_name(name)):
        return None
    if not dot and prefix in PREFIXES:
        return None
    return _TYPES.get(prefix)


def flatten(trace: AttentionTrace) -> dict[str, NDArray[Any]]:
    """Return the arrays of a trace under the keys of the schema."""
    arrays: dict[str, NDArray[Any]] = {
        "position": trace.position,
        "token": trace.token,
        "use_order": trace.use_order,
    }
    if trace.mass is not None:
        arrays["mass"] = trace.mass
    groups: tuple[Arrays, ...] = (trace.pred_order, trace.accepted, trace.draft_token)
    for prefix, group in zip(PREFIXES, groups, strict=True):
        arrays |= {f"{prefix}.{name}": array for name, array in group.items()}
    return arrays


def build_trace(
    meta: Mapping[str, Any], arrays: Arrays, file: str, warnings: tuple[str, ...] = ()
) -> AttentionTrace:
    """Check a header and arrays against the schema and each other; return the trace.

    Arrays of other integer types are accepted when every value fits. Raises InputError with the
    array, step, layer and head of the first mistake. Unknown arrays are dropped with a warning.
    """
    found = [*check_header(meta, file), *warnings]
    meta = with_integers(meta)
    checker = _Checker(meta, file)
    typed = {}
    for key, array in arrays.items():
        dtype = array_type(key)
        if dtype is None:
            found.append(f"unknown array dropped: {printable(key, 60)}")
        else:
            typed[key] = checker.typed(key, array, dtype)
    checker.check_rows(typed)
    for key in typed:
        if key == "use_order" or key.startswith("pred_order."):
            checker.check_order(key, typed)
    if "mass" in typed:
        checker.check_mass(typed["mass"], typed["position"])
        found += _mass_warnings(typed["mass"])
    groups = {
        prefix: {
            key.partition(".")[2]: array
            for key, array in typed.items()
            if key.startswith(f"{prefix}.")
        }
        for prefix in PREFIXES
    }
    found += _drafter_warnings(meta, groups)
    return AttentionTrace(
        meta=meta,
        position=typed["position"],
        token=typed["token"],
        use_order=typed["use_order"],
        pred_order=groups["pred_order"],
        accepted=groups["accepted"],
        draft_token=groups["draft_token"],
        mass=typed.get("mass"),
        warnings=tuple(found),
    )


def _mass_warnings(mass: NDArray[np.uint8]) -> list[str]:
    """Say where a step holds no attention mass, though softmax always gives some."""
    empty = int((mass.max(axis=-1, initial=0) == 0).sum())
    if not empty:
        return []
    whole = mass.shape[0] * mass.shape[1] * mass.shape[2]
    return [
        f"no attention mass in {empty:,} of {whole:,} steps x layers x heads: "
        "the captured mass of those is unknown and left out of the means"
    ]


def _drafter_warnings(
    meta: Mapping[str, Any], groups: Mapping[str, Mapping[str, NDArray[Any]]]
) -> list[str]:
    """Say which drafters are described but not stored, or stored in part."""
    stored = set(groups["pred_order"])
    found = [
        f"drafter {printable(name, 60)} is in the header but has no pred_order"
        for name in meta.get("drafters") or {}
        if name not in stored
    ]
    for prefix in ("accepted", "draft_token"):
        missing = sorted(stored ^ set(groups[prefix]))
        found += [f"{prefix} and pred_order differ for drafter {name}" for name in missing]
    return found


class _Checker:
    """Check arrays against the header; every error names the file and the array."""

    def __init__(self, meta: Mapping[str, Any], file: str) -> None:
        self.meta = meta
        self.file = file

    def error(self, key: str, problem: str, fix: str | None = None) -> InputError:
        """Return the error for one array."""
        fix = fix or "write the trace again, or repair its writer"
        return InputError(problem, file=self.file, field=printable(key, 120), fix=fix)

    def typed(self, key: str, array: NDArray[Any], dtype: type[np.integer[Any]]) -> NDArray[Any]:
        """Return an array in its type; refuse other kinds, and values that do not fit."""
        if array.dtype.kind not in "iu":
            raise self.error(key, f"holds {array.dtype} where whole numbers are expected")
        if array.dtype != dtype and array.size:
            info = np.iinfo(dtype)
            if array.min() < info.min or array.max() > info.max:
                raise self.error(key, f"holds values outside {info.min} .. {info.max}")
        return np.ascontiguousarray(array, dtype=dtype)

    def check_rows(self, arrays: Arrays) -> None:
        """Check that the arrays exist, have the header's shape, and that time goes forward."""
        for key in ("position", "token", "use_order"):
            if key not in arrays:
                raise self.error(key, "is missing")
        steps, layers = self.meta["steps"], len(self.meta["layer_ids"])
        heads = arrays["use_order"].shape[2] if arrays["use_order"].ndim == 4 else 0
        orders = (steps, layers, heads, self.meta["stored_blocks"])
        for key, array in arrays.items():
            expected: tuple[int, ...] = (steps,)
            if key == "token":
                expected = (steps + 1,)
            elif key == "mass":
                expected = (*orders[:3], array.shape[-1] if array.ndim == 4 else 0)
            elif array.ndim == 4 or key == "use_order" or key.startswith("pred_order."):
                expected = orders
            if array.shape != expected:
                text = f"has shape {array.shape}; the header and use_order say {expected}"
                raise self.error(key, text)
        if not 1 <= heads <= self.meta["model"]["kv_heads"]:
            problem = f"holds {heads} KV heads; the model has {self.meta['model']['kv_heads']}"
            raise self.error("use_order", problem)
        self._check_values(arrays)

    def _check_values(self, arrays: Arrays) -> None:
        """Check positions, token ids and acceptance flags."""
        position = arrays["position"]
        late = np.diff(position.astype(np.int64), prepend=-1) <= 0
        if late.any():
            step = int(np.argmax(late))
            problem = f"step {step}: must be 0 or more and increase from step to step"
            raise self.error("position", problem)
        if int(position[-1]) // self.meta["block_tokens"] >= MOST_BLOCKS:
            raise self.error("position", f"reaches more than {MOST_BLOCKS} blocks")
        for key, array in arrays.items():
            prefix = key.partition(".")[0]
            if prefix in {"token", "draft_token"} and array.min() < -1:
                raise self.error(key, "holds a token id below -1 (-1 = unknown)")
            if prefix == "accepted" and array.max() > 1:
                raise self.error(key, "holds something else than 0 and 1")

    def check_order(self, key: str, arrays: Arrays) -> None:
        """Check that an order names complete blocks, each once, padded at the end only."""
        order: Order = arrays[key]
        ahead = int(key != "use_order")
        complete = (arrays["position"].astype(np.int64) + ahead) // self.meta["block_tokens"]
        for step in range(len(order)):
            ranked = np.sort(order[step], axis=-1)
            used = order[step] != NO_BLOCK
            late = (order[step] >= complete[step]) & used
            twice = (ranked[..., 1:] == ranked[..., :-1]) & (ranked[..., 1:] != NO_BLOCK)
            hole = used[..., 1:] & ~used[..., :-1]
            problems = (
                (late, f"names a block that is not complete ({complete[step]} are)"),
                (twice, "names a block twice"),
                (hole, f"has {NO_BLOCK} (no block) before a block"),
            )
            for wrong, problem in problems:
                if wrong.any():
                    layer, head = np.argwhere(wrong)[0][:2]
                    where = f"step {step}, layer {layer}, head {head}: "
                    raise self.error(key, where + problem)

    def check_mass(self, mass: NDArray[np.uint8], position: NDArray[np.int32]) -> None:
        """Check that mass covers the context and nothing beyond it."""
        active = position.astype(np.int64) // self.meta["block_tokens"]
        if mass.shape[-1] <= active.max():
            problem = f"covers {mass.shape[-1]} blocks; the context has {active.max() + 1}"
            raise self.error("mass", problem)
        for step, last in enumerate(active):
            if mass[step, :, :, last + 1 :].any():
                raise self.error("mass", f"step {step}: holds mass beyond the context")
