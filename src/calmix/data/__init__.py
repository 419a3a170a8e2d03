"""Tables, images and hub data sets → Examples with stable ids, label names and splits."""

from calmix.data.decisions import Applied, apply_decisions, read_decisions
from calmix.data.examples import Examples
from calmix.data.files import atomic_path, open_bytes, write_json, write_text
from calmix.data.hygiene import Duplicates, duplicates, hygiene_lines, leakage
from calmix.data.reading import read_examples
from calmix.data.splits import fold_examples, split_examples
from calmix.data.tables import read_table, write_table, write_tables

__all__ = [
    "Applied",
    "Duplicates",
    "Examples",
    "apply_decisions",
    "atomic_path",
    "duplicates",
    "fold_examples",
    "hygiene_lines",
    "leakage",
    "open_bytes",
    "read_decisions",
    "read_examples",
    "read_table",
    "split_examples",
    "write_json",
    "write_table",
    "write_tables",
    "write_text",
]
