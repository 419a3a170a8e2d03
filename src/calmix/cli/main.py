"""All commands under one name, and what becomes of errors."""

import functools
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Any

import typer

from calmix._version import __version__
from calmix.cli.calibrate import calibrate
from calmix.cli.demo import demo
from calmix.cli.distil import distil
from calmix.cli.evaluate import evaluate
from calmix.cli.export import export
from calmix.cli.map import map_
from calmix.cli.ood import ood
from calmix.cli.plot import plot
from calmix.cli.predict import predict
from calmix.cli.recipes import recipes
from calmix.cli.report import report
from calmix.cli.showing import note, plain
from calmix.cli.study import study
from calmix.cli.subset import subset
from calmix.cli.train import train
from calmix.errors import CalmixWarning, InputError, TrainingError
from calmix.processors import limit_threads

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


def _interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with a Ctrl-C that ends it in one line and exit code 130."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt as stop:
            raise typer.Exit(_say(str(stop) or "stopped", 130)) from None

    return run


for _command in (
    train,
    distil,
    predict,
    evaluate,
    ood,
    calibrate,
    map_,
    subset,
    study,
    report,
    plot,
    export,
    recipes,
    demo,
):
    app.command(_command.__name__.rstrip("_"))(_interruptible(_command))


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
    limit_threads()
    with _terminable(), _noting():
        code = _run(arguments)
    sys.exit(code)


def _run(arguments: list[str] | None) -> int:
    try:
        code = app(args=arguments, standalone_mode=False)
    except (InputError, _ClickError) as error:
        message = _message(error)
        return _say(message, 2) if message else 2
    except TrainingError as error:
        return _say(str(error), 1)
    except BrokenPipeError:
        # Whoever read our output has gone: nothing is left to say, and Python must not try at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.filename is None and error.strerror is None:
            raise
        return _say(f"{error.filename or 'the system'}: {error.strerror}", 1)
    except Exception as error:
        # Loaded only where a recipe was chosen.
        choosing = sys.modules.get("calmix.mixing.choosing")
        blamed = None if choosing is None else choosing.blame(error)
        if blamed is None:
            raise
        return _say(blamed, 2)
    return code if isinstance(code, int) else 0


def _message(error: Any) -> str:
    if not isinstance(error, _UsageError):
        return str(error.format_message() if isinstance(error, _ClickError) else error)
    context = getattr(error, "ctx", None)
    words = error.format_message().replace("Value error, ", "").removesuffix(".")
    if not words:  # nothing was given, and the help was printed
        return ""
    return f"{words} (see {context.command_path if context is not None else 'calmix'} --help)"


@contextmanager
def _terminable() -> Iterator[None]:
    """Treat SIGTERM, with which schedulers announce the end, as Ctrl-C: training saves its state."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        # Shells start background jobs with Ctrl-C ignored: there it would stop nothing.
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            signal.default_int_handler(number, frame)
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _noting() -> Iterator[None]:
    """Show our own warnings as the notes that they are, once however many processes there are."""
    before = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if not issubclass(category, CalmixWarning):
            before(message, category, *where, **more)
        elif os.environ.get("LOCAL_RANK", "0") == "0":
            note(str(message))

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before


def _say(message: str, code: int) -> int:
    # One line, whatever a library's message or a file name has in it, and once however many processes there are.
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"calmix: {plain(message)}", file=sys.stderr)
    return code
