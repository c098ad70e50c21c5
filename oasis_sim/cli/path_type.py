"""The type of options and arguments that are paths: what can be done with one is told on use.

Click would end with the code of a usage error where a file may not be read; that is bad input, and
a file that is to be replaced need not be readable.
"""

from __future__ import annotations

from pathlib import Path

import click

PATH = click.Path(path_type=Path, readable=False)
