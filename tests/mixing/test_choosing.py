"""A recipe from its name and `key=value` options."""

from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from calmix.errors import InputError
from calmix.mixing import RECIPES, Recipe, choose, choosing, describe, options_of
from calmix.mixing.choosing import blame
from calmix.mixing.terms import clean

OWN = '''
"""A method of one's own."""
from dataclasses import dataclass
from typing import Literal

from calmix.recipes import Recipe, clean


@dataclass
class Note:
    text: "str"


def mine(*, strength: float = 0.5, rounds: int = 2, how: Literal["up", "down"] = "up", loud: bool = False) -> Recipe:
    """Do it my way.

    Paper: none yet.

    Args:
        strength: how much.
        rounds: how often.
    """
    mine.called = (strength, rounds, how, loud)
    return Recipe(clean())


def needy(*, must: int) -> Recipe:
    return Recipe(clean())


def wrong() -> int:
    return 3


constant = 5
'''


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "random.py"  # a name the standard library has too
    file.write_text(OWN)
    return file


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what the recipe `probe` was called with."""
    got: dict[str, Any] = {}

    def probe(
        *,
        number: float = 1.0,
        count: int = 1,
        flag: bool = False,
        word: str = "",
        layers: tuple[int, ...] = (),
        shares: tuple[float, ...] = (),
        pick: Literal["a", "b"] = "a",
        size: Literal[1, 2] = 1,
        perhaps: int | None = None,
        untyped=0.5,  # type: ignore[no-untyped-def]
    ) -> Recipe:
        got.update({name: value for name, value in locals().items() if name != "got"})
        return Recipe(clean())

    monkeypatch.setitem(RECIPES, "probe", probe)
    return got


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_can_be_chosen_with_what_its_options_default_to(name: str) -> None:
    options = {option.name: option.default for option in options_of(RECIPES[name])}
    assert isinstance(choose(name), Recipe)
    assert isinstance(choose(name, options), Recipe)
    if name != "back-translation":  # an empty name of a model is no text to type
        as_text = {key: ",".join(map(str, v)) if isinstance(v, tuple) else str(v) for key, v in options.items()}
        assert isinstance(choose(name, as_text), Recipe)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_says_what_it_is_and_what_its_options_do(name: str) -> None:
    what, _ = describe(RECIPES[name])
    assert what.endswith(".")
    assert all(option.help for option in options_of(RECIPES[name]))


def test_papers_are_named() -> None:
    assert describe(RECIPES["cls-mixup"])[1] == "Zhang & Vaidya 2021 (α = 1.0 there)."
    assert describe(RECIPES["erm"])[1] == ""


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        ("number", "0.25", 0.25),
        ("number", "-1e-3", -0.001),
        ("number", 2, 2.0),
        ("count", "7", 7),
        ("count", 7, 7),
        ("count", 7.0, 7),
        ("flag", "true", True),
        ("flag", "False", False),
        ("flag", True, True),
        ("word", "any thing", "any thing"),
        ("layers", "0,2,4", (0, 2, 4)),
        ("layers", "3", (3,)),
        ("layers", "", ()),
        ("layers", [1, 2], (1, 2)),
        ("shares", "0.5, 1", (0.5, 1.0)),
        ("pick", "b", "b"),
        ("size", "2", 2),
        ("perhaps", "4", 4),
        ("perhaps", "none", None),
        ("perhaps", None, None),
        ("untyped", "0.75", 0.75),
    ],
)
def test_text_is_read_as_what_the_option_takes(seen: dict[str, Any], option: str, text: Any, value: Any) -> None:
    choose("probe", {option: text})
    assert seen[option] == value
    assert type(seen[option]) is type(value)


@pytest.mark.parametrize(
    ("option", "text", "wants"),
    [
        ("number", "much", "a finite number"),
        ("number", "nan", "a finite number"),
        ("number", "inf", "a finite number"),
        ("number", True, "a finite number"),
        ("count", "1.5", "a whole number"),
        ("count", 1.5, "a whole number"),
        ("count", "", "a whole number"),
        ("flag", "yes", "true or false"),
        ("layers", "0;2", "whole numbers, as in 0,2,4"),
        ("layers", 3, "whole numbers, as in 0,2,4"),
        ("shares", "half", "numbers, as in 0.1,0.5"),
        ("pick", "c", "one of a, b"),
        ("size", "3", "one of 1, 2"),
        ("perhaps", "some", "a whole number or none"),
    ],
)
def test_a_value_that_cannot_be_read_is_refused_with_what_could(
    seen: dict[str, Any], option: str, text: Any, wants: str
) -> None:
    with pytest.raises(InputError) as caught:
        choose("probe", {option: text})
    assert str(caught.value) == f"recipe probe: {option} takes {wants}, not {text!r}"


def test_a_word_that_is_mistyped_is_asked_about() -> None:
    with pytest.raises(InputError, match=r"one of reversed, shuffled, not 'shufled'; did you mean 'shuffled'\?$"):
        choose("on-off-manifold", {"pairs": "shufled"})


def test_a_value_that_can_be_read_but_not_be_is_refused_by_recipe_and_option() -> None:
    with pytest.raises(InputError, match=r"^recipe cls-mixup: alpha must be a finite number, 0 or above, not -1\.0$"):
        choose("cls-mixup", {"alpha": "-1"})
    with pytest.raises(InputError, match=r"^recipe erm: smoothing must be between 0 and 1, not 1\.5$"):
        choose("erm", {"smoothing": 1.5})


def test_an_unknown_recipe_is_met_with_those_there_are() -> None:
    with pytest.raises(InputError) as caught:
        choose("cls-mixp")
    assert str(caught.value) == (
        f"there is no recipe 'cls-mixp' (there are: {', '.join(RECIPES)}); did you mean cls-mixup?"
    )
    with pytest.raises(InputError) as caught:
        choose("zzz")
    assert str(caught.value).endswith("distil)")


def test_the_default_that_is_gone_is_said_to_be() -> None:
    with pytest.raises(InputError) as caught:
        choose("auto", {"own": "0.5"})
    assert str(caught.value) == (
        "there is no recipe 'auto' any more: it was the default of calmix 0.1.0; the default is erm"
    )


def test_a_file_alone_is_asked_for_its_function() -> None:
    with pytest.raises(InputError, match=r"my\.py: say which of its functions makes the recipe, as my\.py:FUNCTION"):
        choose("my.py")


def test_the_papers_mixup_is_met_with_its_name_here() -> None:
    with pytest.raises(InputError, match=r"did you mean input-mixup\?$"):
        choose("mixup")


def test_an_unknown_option_is_met_with_those_there_are() -> None:
    with pytest.raises(InputError) as caught:
        choose("erl", {"betta": 1})
    assert str(caught.value) == "recipe erl has no option 'betta' (it has: beta, smoothing); did you mean beta?"
    with pytest.raises(InputError, match=r"has no option 'qqq' \(it has: smoothing\)$"):
        choose("erm", {"qqq": 1})


def test_a_function_in_a_file_is_a_recipe(own: Path) -> None:
    import random

    recipe = choose(f"{own}:mine", {"strength": "0.9", "rounds": "3", "how": "down", "loud": "true"})
    assert isinstance(recipe, Recipe)
    assert hasattr(random, "randrange")
    import sys

    assert sys.modules["random"] is random
    assert sys.modules["calmix_recipe_random"].mine.called == (0.9, 3, "down", True)


def test_the_file_is_read_anew_each_time(own: Path) -> None:
    choose(f"{own}:mine")
    own.write_text(OWN.replace("rounds: int = 2", "turns: int = 2").replace("rounds,", "turns,"))
    with pytest.raises(InputError, match="has no option 'rounds'"):
        choose(f"{own}:mine", {"rounds": 1})


def test_a_function_in_a_module_is_a_recipe() -> None:
    assert isinstance(choose("calmix.recipes:cls_mixup", {"alpha": "1"}), Recipe)


def test_a_part_of_a_function_is_a_recipe(own: Path) -> None:
    own.write_text(OWN + "\nfrom functools import partial\nhalf = partial(mine, strength=0.1)\n")
    assert isinstance(choose(f"{own}:half", {"rounds": 4}), Recipe)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("other", "has no function 'other' that makes a recipe"),
        ("constant", "has no function 'constant' that makes a recipe"),
        ("wrong", "returned int, not a calmix.recipes.Recipe"),
        ("needy", "needs a value for must"),
    ],
)
def test_what_is_no_recipe_is_refused(own: Path, function: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        choose(f"{own}:{function}")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import nowhere_to_be_found", "ModuleNotFoundError"),
        ("def f(:\n", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_file_that_cannot_be_imported_gets_one_line(tmp_path: Path, code: str, reason: str) -> None:
    file = tmp_path / "bad.py"
    file.write_text(code)
    with pytest.raises(InputError, match=reason) as caught:
        choose(f"{file}:f")
    assert str(caught.value).startswith(f"{file}: cannot be imported to take a recipe from (")
    assert "\n" not in str(caught.value)


def test_a_file_or_module_that_is_not_there_gets_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file, to take a recipe from"):
        choose(f"{tmp_path / 'none.py'}:f")
    with pytest.raises(InputError, match="nowhere_at_all: cannot be imported"):
        choose("nowhere_at_all:f")


def test_options_have_types_defaults_and_help(own: Path) -> None:
    options = {option.name: option for option in options_of(choosing.maker_of(f"{own}:mine"))}
    assert list(options) == ["strength", "rounds", "how", "loud"]
    assert (options["strength"].kind, options["strength"].default, options["strength"].help) == (
        float,
        0.5,
        "how much.",
    )
    assert options["loud"].help == ""


def test_a_catch_all_is_no_option() -> None:
    def loose(*, alpha: float = 1.0, **others: Any) -> Recipe:
        return Recipe(clean())

    assert [option.name for option in options_of(loose)] == ["alpha"]
    assert [option.name for option in options_of(partial(loose, alpha=2.0))] == ["alpha"]


def test_an_error_in_a_recipe_of_ones_own_is_told_by_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text("def wrong():\n    return helped()\n\n\ndef helped():\n    return 1 / 0\n")
    with pytest.raises(ZeroDivisionError) as caught:
        choose(f"{file}:wrong")
    assert blame(caught.value) == f"{file}, line 6, in your recipe: ZeroDivisionError: division by zero"
    with pytest.raises(ZeroDivisionError) as other:
        1 / 0  # noqa: B018
    assert blame(other.value) is None
