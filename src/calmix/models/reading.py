"""Data that a trained model is judged or corrected by."""

from typing import Any

from calmix.data import Examples, read_examples
from calmix.errors import InputError
from calmix.models.ensembles import Predictor

__all__ = ["read_for"]


def read_for(
    model: Predictor, source: str, *, label: str | None = None, labelled: bool | None = True, **options: Any
) -> Examples:
    """Return the examples in a source, as `read_examples` reads it with these options, with the model's labels.

    Data of a kind that the model does not read is refused for that, whatever its labels are.
    """
    options = {"usual": model.columns, **options}
    try:
        examples = read_examples(
            source, label=label, labelled=labelled, label_names=model.label_names or None, **options
        )
    except InputError as wrong:
        try:
            examples = read_examples(source, labelled=False, **options)
        except InputError:
            raise wrong from None
        model.check(examples)
        raise
    model.check(examples)
    return examples
