"""Turn what was decoded into cases: a study's numbers, and what they were measured on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from oasis_sim.quality.bootstrap import CONFIDENCE, METHOD, BlockBootstrap
from oasis_sim.quality.decode import ALIKE, COUNTED, Decoding, log_shares
from oasis_sim.quality.measure import StepQuality, compare_texts, summarise
from oasis_sim.quality.options import QualityOptions
from oasis_sim.quality.result import CaseQuality
from oasis_sim.record.backend import RecordedModel
from oasis_sim.record.checkpoint import Part
from oasis_sim.record.prompt import Prompt
from oasis_sim.record.trajectory import Trajectory
from oasis_sim.scheme import Scheme


@dataclass(frozen=True, eq=False)
class Summary:
    """Turn what was decoded into numbers."""

    decoding: Decoding
    head_dim: int
    full: Part
    boot: BlockBootstrap

    def full_nll(self) -> float:
        """Return the mean NLL of the trajectory after step 0 by full attention."""
        after = self.decoding.tokens[2:]
        shares = log_shares(self.full["logits"][1:])
        return -float(shares[np.arange(len(after)), list(after)].mean())

    def case(self, scheme: Scheme, row: Part) -> CaseQuality:
        """Return a scheme's quality, before cases are compared."""
        kl, agreement, nll = row["outputs"].numpy()
        needed, admitted, overlap, mass = (row[name].numpy() for name in COUNTED)
        alike = row[ALIKE].numpy() if ALIKE in row else None
        steps = StepQuality(kl, agreement, nll, mass, overlap, needed, admitted, alike)
        layers = self.decoding.start.full_layers
        estimates, traffic, by_layer, stretches = summarise(
            scheme, steps, layers, self.head_dim, self.boot
        )
        case = CaseQuality(
            scheme,
            estimates,
            traffic,
            by_layer,
            stretches,
            tuple(kl[1:].tolist()),
            draft_accepted=self.decoding.accepted(scheme),
        )
        if "text" in row:
            more = float(row["text_nll"]) - float(self.full["text_nll"][0])
            texts = self.full["text"][0].tolist(), row["text"].tolist()
            case = replace(case, free_run=compare_texts(*texts, more))
        return case


def facts_of(
    model: RecordedModel,
    prompt: Prompt,
    path: Trajectory,
    options: QualityOptions,
    boot: BlockBootstrap,
) -> dict[str, Any]:
    """Return what was decoded, and how errors were estimated."""
    return {
        "model": model.header(),
        "text": {**prompt.header, "perplexity": path.perplexity},
        "prompt_tokens": path.prompt_tokens,
        "steps": path.steps,
        "trajectory": options.decode.trajectory_header(),
        "bound_join": options.decode.bound_join,
        "kv_dtype": "bfloat16" if options.kv_16bit else model.dtype,
        "interval": {
            "method": METHOD,
            "confidence": CONFIDENCE,
            "block_steps": boot.block_steps,
            "resamples": options.resamples,
            "seed": options.bootstrap_seed,
        },
    }
