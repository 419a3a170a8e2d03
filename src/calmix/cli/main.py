"""All commands under one name, and what becomes of errors."""

import os
import sys
from typing import Annotated, Any

import typer

from calmix._version import __version__
from calmix.cli.calibrate import calibrate
from calmix.cli.demo import demo
from calmix.cli.evaluate import evaluate
from calmix.cli.predict import predict
from calmix.cli.recipes import recipes
from calmix.cli.train import train
from calmix.errors import InputError, TrainingError

__all__ = ["app", "main"]

app = typer.Typer(
    name="calmix",
    help="Train classifiers whose confidence can be trusted.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(train)
app.command()(predict)
app.command()(evaluate)
app.command()(calibrate)
app.command()(recipes)
app.command()(demo)


def _version(asked: bool) -> None:
    if asked:
        print(f"calmix {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


# Typer carries its own copy of click in newer releases: what both versions share is found through a subclass.
_UsageError: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "UsageError")
_ClickError: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def main(arguments: list[str] | None = None) -> None:
    """Run a command. Exit codes: 0 done, 2 something in the input or the command was wrong, 1 anything else."""
    # Forked tokenizer threads warn about nothing we do.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    try:
        code = app(args=arguments, standalone_mode=False)
    except InputError as error:
        _say(str(error))
        code = 2
    except _UsageError as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "calmix"
        message = error.format_message()
        _say(f"{' '.join(message.split())} (see {command} --help)")
        code = 2
    except _ClickError as error:
        _say(error.format_message())
        code = 2
    except TrainingError as error:
        _say(str(error))
        code = 1
    except (KeyboardInterrupt, typer.Abort):
        _say("stopped; the same command goes on from the last checkpoint")
        code = 130
    except BrokenPipeError:
        # Whoever read our output has gone: nothing is left to say, and Python must not try at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


def _say(message: str) -> None:
    # One line, whatever a library's message or a file name has in it.
    print(f"calmix: {' '.join(message.split())}", file=sys.stderr)
