"""Options of the commands that run a real model: `record` and `quality`."""

from __future__ import annotations

import click

TEMPERATURE = click.option(
    "--temperature", type=float, default=0.8, show_default=True, help="For sample."
)
SEED = click.option("--seed", type=int, default=0, show_default=True, help="For sample.")
IGNORE_EOS = click.option("--ignore-eos", is_flag=True, help="Never let the model end its text.")
CHUNK_TOKENS = click.option(
    "--chunk-tokens", type=int, default=256, show_default=True, help="Tokens per prefill chunk."
)
MAX_PERPLEXITY = click.option(
    "--max-perplexity",
    type=float,
    default=100.0,
    show_default=True,
    help="Refuse a model that reads the prompt worse than this.",
)
MODEL_NAME = click.option(
    "--model-name", help="Name of the model.  [default: the file's or folder's name]"
)
DTYPE = click.option("--dtype", default="float32", show_default=True, help="float32 or bfloat16.")
THREADS = click.option(
    "--threads", type=int, default=1, show_default=True, help="CPU threads; more is often slower."
)
