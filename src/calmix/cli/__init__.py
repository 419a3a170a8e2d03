"""The command line: one thin file per command."""

from calmix.cli.main import main

__all__ = ["main"]
