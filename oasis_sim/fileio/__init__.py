"""Capped reading (plain, gz, zst), strict YAML and JSON, field checks, atomic writing."""

from oasis_sim.fileio.atomic import (
    AtomicDirectory,
    check_writable,
    directory_path,
    inside,
    write_atomic,
)
from oasis_sim.fileio.document import Document, load_json, load_yaml, loads_json, loads_yaml
from oasis_sim.fileio.dump import dump_yaml
from oasis_sim.fileio.fields import LARGEST_EXACT, Fields
from oasis_sim.fileio.find import find_input, shipped_inputs
from oasis_sim.fileio.lines import TextLines, open_text_lines
from oasis_sim.fileio.listed import check_whole_run
from oasis_sim.fileio.mistakes import MistakesError, did_you_mean, raise_all
from oasis_sim.fileio.numeric import is_number
from oasis_sim.fileio.owned import (
    LOG_NAME,
    MANIFEST_NAME,
    REPLAY_NAME,
    RUN_FORMAT,
    in_the_way,
    listed_files,
)
from oasis_sim.fileio.sourced import SourcedFields, read_curve
from oasis_sim.fileio.streams import content_chunks, open_regular, read_bytes, unreadable
from oasis_sim.fileio.text import printable

__all__ = [
    "LARGEST_EXACT",
    "LOG_NAME",
    "MANIFEST_NAME",
    "REPLAY_NAME",
    "RUN_FORMAT",
    "AtomicDirectory",
    "Document",
    "Fields",
    "MistakesError",
    "SourcedFields",
    "TextLines",
    "check_whole_run",
    "check_writable",
    "content_chunks",
    "did_you_mean",
    "directory_path",
    "dump_yaml",
    "find_input",
    "in_the_way",
    "inside",
    "is_number",
    "listed_files",
    "load_json",
    "load_yaml",
    "loads_json",
    "loads_yaml",
    "open_regular",
    "open_text_lines",
    "printable",
    "raise_all",
    "read_bytes",
    "read_curve",
    "shipped_inputs",
    "unreadable",
    "write_atomic",
]
