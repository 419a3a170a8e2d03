"""What goes wrong on the user's side of the fence, as opposed to in calmix."""

__all__ = ["CalmixWarning", "InputError", "TrainingError"]


class InputError(ValueError):
    """Input that cannot be used: its one-line message names the file, the row and the remedy.

    The command line prints the message alone and exits with code 2.
    """


class CalmixWarning(UserWarning):
    """Something the user should know about, that does not stop the work."""


class TrainingError(RuntimeError):
    """Training that cannot go on, through no fault of the input's form: its message says what to try."""
