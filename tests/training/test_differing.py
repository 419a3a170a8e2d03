"""How two runs differ, in words."""

from typing import Any

import pytest

from calmix.training.differing import difference

ONE, OTHER = "0123456789abcdef", "fedcba9876543210" * 4
OLD: dict[str, Any] = {
    "lr": 0.1,
    "model": "minilm",
    "model_hash": ONE,
    "options": {"alpha": 0.4},
    "teacher": [ONE],
    "data": {"train": ONE, "dev": ONE},
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "made by another version"),
        ({"lr": 0.2}, "lr was 0.1, is 0.2"),
        ({"lr": 0.2, "seed": 3}, "lr was 0.1, is 0.2; seed was not given, is 3"),
        ({"options": {"alpha": 0.5}}, "options: alpha was 0.4, is 0.5"),
        ({"options": None}, "options: alpha was 0.4, is not given"),
        ({"model": "./own", "model_hash": OTHER}, "model was minilm, is ./own"),
        ({"model_hash": OTHER}, "model is not the same as it was"),
        ({"teacher": [OTHER]}, "teacher is not the same as it was"),
        ({"teacher": [ONE, OTHER]}, "teacher is not the same as it was"),
        ({"teacher": [f"{ONE} unscaled"]}, "teacher was scaled, is unscaled"),
        ({"teacher": None, "dynamics": OTHER}, "dynamics was not given, is given; teacher was given, is not given"),
        ({"data": {"train": OTHER, "dev": ONE}}, "data: train is not the same as it was"),
        (
            {"data": {"train": ONE, "test": ONE}},
            "data: test was not given, is given; data: dev was given, is not given",
        ),
        (
            {"data": {"train": ONE}, "guarantee": 0.9},
            "guarantee was not given, is 0.9; data: dev was given, is not given",
        ),
        ({"teacher": f"{ONE} unscaled"}, "teacher was scaled, is unscaled"),
        ({"lr": {"1": 0.1}}, "lr was 0.1, is {'1': 0.1}"),
        ({"options": 3}, "options was {'alpha': 0.4}, is 3"),
        ({"new": "x" * 100}, f"new was not given, is {'x' * 37}..."),
        (dict.fromkeys("abcdef", 1), "; ".join(f"{n} was not given, is 1" for n in "abcd") + "; and 2 more"),
    ],
)
def test_what_differs_is_named_and_no_hash_is_shown(change: dict[str, Any], words: str) -> None:
    # What is None is not written down.
    new = {name: value for name, value in {**OLD, **change}.items() if value is not None}
    assert difference(OLD, new) == words
