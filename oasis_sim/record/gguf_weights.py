"""Load a GGUF file's weights one tensor at a time, straight into the model's parameters.

The library's own loader unpacks the whole file to float32 beside the model. The names of weights,
and what some architectures change about them, are the library's here too.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oasis_sim.units import MIB

EMBEDDING = "token_embd.weight"
"""The table of a row per token is read in parts: no architecture changes it as a whole."""
_PART_BYTES = 8 * MIB


def load_gguf_model(path: str, dtype: torch.dtype, attention: str) -> Any:
    """Build the model of a GGUF file and fill it; ``attention`` names its implementation.

    Memory: the model and its largest tensor in float32 (of the embedding a part). Raises what the
    library raises for a broken file, ValueError for one that lacks weights or parts of them.
    """
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM
    from transformers.initialization import no_init_weights
    from transformers.modeling_gguf_pytorch_utils import (
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
        load_gguf_checkpoint,
    )

    facts = load_gguf_checkpoint(path)["config"]
    config = CONFIG_MAPPING[facts["model_type"]].from_dict(facts)
    architecture, tensors = read_tensors(path)
    kinds = {"dtype": dtype, "attn_implementation": attention}
    with no_init_weights():
        module = AutoModelForCausalLM.from_config(config, **kinds)
    module.tie_weights()
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=facts)
    with one_table_of_names():
        names = get_gguf_hf_weights_map(module, processor)
    places = dict(module.state_dict())
    # Some architectures put together here what the file has in several tensors.
    joined: dict[str, torch.Tensor] = {}
    filled: set[int] = set()
    for tensor in tensors:
        for first, weights in unpacked(tensor):
            made = processor.process(
                weights=weights,
                name=tensor.name,
                tensor_key_mapping=names,
                parsed_parameters={"tensors": joined, "config": facts},
            )
            if made.name in names:
                place = places[names[made.name]]
                check_size(tensor, made.weights, place)
                last = first + len(made.weights)
                place[first:last].copy_(torch.from_numpy(np.array(made.weights)))
                filled.add(place.data_ptr())
    for key, value in joined.items():
        places[key].copy_(value)
        filled.add(places[key].data_ptr())
    missing = [key for key, each in module.named_parameters() if each.data_ptr() not in filled]
    if missing:
        raise ValueError(f"the file has no weights for {missing[0]}")
    return module


@contextlib.contextmanager
def one_table_of_names() -> Iterator[None]:
    """Let the library build its table of names once, not anew for every part of the model."""
    import gguf

    build = gguf.get_tensor_name_map
    try:
        gguf.get_tensor_name_map = functools.cache(build)
        yield
    finally:
        gguf.get_tensor_name_map = build


def read_tensors(path: str) -> tuple[str, list[Any]]:
    """Return a file's architecture and its tensors, as views of the file."""
    from gguf import GGUFReader

    reader = GGUFReader(path)
    return str(reader.fields["general.architecture"].contents()), reader.tensors


def check_size(tensor: Any, weights: NDArray[np.float32], place: torch.Tensor) -> None:
    """Raise ValueError unless a tensor fills its parameter; of the embedding this is a part."""
    rows = len(tensor.data) if tensor.name == EMBEDDING else len(weights)
    if (size := (rows, *weights.shape[1:])) != tuple(place.shape):
        raise ValueError(f"{tensor.name} is {size}, the model needs {tuple(place.shape)}")


def unpacked(tensor: Any) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Return a tensor in float32: (first row, rows), the embedding in parts."""
    from gguf import dequantize

    rows = len(tensor.data)
    step = rows
    if tensor.name == EMBEDDING:
        step = max(1, _PART_BYTES // (4 * int(tensor.shape[0])))
    for first in range(0, rows, step):
        yield first, dequantize(tensor.data[first : first + step], tensor.tensor_type)
