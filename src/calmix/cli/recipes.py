"""`calmix recipes`: what can be trained with."""

import typing
from typing import Annotated, Any

import typer

from calmix.cli.showing import print_json

__all__ = ["recipes"]


def recipes(
    name: Annotated[str | None, typer.Argument(help="Show this one only; also FILE.py:FUNCTION.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List the training methods: what each is, its options and its paper."""
    from calmix.mixing import RECIPES, describe, options_of
    from calmix.mixing.choosing import maker_of

    shown = RECIPES if name is None else {name: maker_of(name)}
    if as_json:
        print_json(
            {
                key: {
                    "what": describe(maker)[0],
                    "paper": describe(maker)[1],
                    "options": {
                        option.name: {"takes": _kind(option.kind), "default": option.default, "help": option.help}
                        for option in options_of(maker)
                    },
                }
                for key, maker in shown.items()
            }
        )
        return
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    for key, maker in shown.items():
        what, paper = describe(maker)
        console.print(Text(key, style="bold"))
        console.print(Padding(Text(what), (0, 0, 0, 2)))
        if paper:
            console.print(Padding(Text(paper, style="dim"), (0, 0, 0, 2)))
        table = Table.grid(padding=(0, 2))
        for option in options_of(maker):
            default = ",".join(map(str, option.default)) if isinstance(option.default, tuple) else str(option.default)
            table.add_row(Text(f"--set {option.name}={default}"), Text(f"{option.help} [{_kind(option.kind)}]"))
        console.print(Padding(table, (0, 0, 1, 4)))


def _kind(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return "|".join(map(str, typing.get_args(kind)))
    if typing.get_origin(kind) is tuple:
        return "whole numbers"
    return {float: "number", int: "whole number", bool: "true|false", str: "text"}.get(kind, str(kind))
