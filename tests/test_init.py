"""The package's front door."""

import inspect
import subprocess
import sys

import pytest

import calmix
from calmix.training.halves import Run


def test_importing_it_costs_no_torch() -> None:
    code = "import sys, calmix; assert not {'torch', 'transformers', 'numpy', 'sklearn', 'pyarrow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there() -> None:
    assert dir(calmix) == calmix.__all__
    for name in calmix.__all__:
        assert getattr(calmix, name) is not None
    assert calmix.train.__module__.startswith("calmix.training")
    assert calmix.load.__module__.startswith("calmix.models")
    assert calmix.fit_head.__module__.startswith("calmix.models")


def test_training_says_that_it_returns_a_run() -> None:
    assert inspect.signature(calmix.train).return_annotation is Run
    assert calmix.train.__annotations__["return"] is Run


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'calmix' has no attribute 'fly'"):
        _ = calmix.fly
