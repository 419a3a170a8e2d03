"""Words of the command line: KEY=VALUE, and which model is meant."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from calmix.cli.parsing import check_apart, check_once, named_files, pairs, predictor, share, unfamiliar, weights
from calmix.errors import InputError
from calmix.models import Classifier, Ensemble


def test_pairs_are_split_at_the_first_equals_sign() -> None:
    assert pairs(["a=1", " b = x=y "], "--set") == {"a": "1", "b": "x=y"}
    assert pairs(["a="], "--set") == {"a": ""}


@pytest.mark.parametrize("words", [["a"], ["=1"], [" =1"], ["a=1", "a=2"]])
def test_what_is_no_pair_is_refused_with_the_options_name(words: list[str]) -> None:
    with pytest.raises(InputError, match="--set"):
        pairs(words, "--set")


@pytest.mark.parametrize(
    ("text", "number"), [("0.95", 0.95), ("95%", 0.95), (" 95 % ", 0.95), ("99.5%", 0.995), ("1e-1", 0.1)]
)
def test_a_share_may_be_written_in_per_cent(text: str, number: float) -> None:
    assert share(text) == pytest.approx(number)


@pytest.mark.parametrize("text", ["", "%", "95%%", "95% of them", "0,95", "high"])
def test_a_share_that_is_no_number_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"is not a number, such as 0\.95 or 95%"):
        share(text)


def test_a_file_that_is_read_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    (tmp_path / "b.csv").symlink_to("a.csv")
    with pytest.raises(InputError, match=r"--out .*b\.csv: is one of the tables that are read"):
        check_apart("--out", tmp_path / "b.csv", "org/name", tmp_path / "a.csv")
    check_apart("--out", tmp_path / "c.csv", tmp_path / "a.csv", tmp_path / "c.csv")


def test_a_file_without_a_name_is_told_what_the_option_takes() -> None:
    with pytest.raises(InputError, match="--ood takes NAME=FILE, not 'tweets'"):
        named_files(["tweets"])


def test_names_of_files_are_plain() -> None:
    assert named_files(["tweets-2.x_y=a b.csv"]) == {"tweets-2.x_y": "a b.csv"}
    for bad in ("../x=f", "a/b=f", ".x=f", "a b=f"):
        with pytest.raises(InputError, match="--ood"):
            named_files([bad])


def test_weights_are_a_word_or_numbers() -> None:
    assert weights(None) is None
    assert weights("balanced") == "balanced"
    assert weights("a=1, b=0.5") == {"a": 1.0, "b": 0.5}
    with pytest.raises(InputError, match="NAME=NUMBER"):
        weights("a=x")


def test_a_file_counts_once_whatever_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    (tmp_path / "b.csv").symlink_to("a.csv")
    (tmp_path / "c.csv").touch()
    names = [str(tmp_path / name) for name in ("a.csv", "c.csv", "b.csv")]
    check_once(*names[:2], "org/data")
    for files in (names, [names[0], names[0]], ["org/data", "org/data"]):
        with pytest.raises(InputError, match=rf"^{files[-1]}: is given twice$"):
            check_once(*files)


def test_a_rate_alone_drops_nothing(checkpoint: Any) -> None:
    assert isinstance(predictor(str(checkpoint("bert")), None, None, None), Classifier)
    assert isinstance(predictor(str(checkpoint("bert")), [str(checkpoint("bert"))], 2, 0.2), Ensemble)
    with pytest.raises(InputError, match="give both"):
        predictor(str(checkpoint("bert")), None, None, 0.3)


def test_data_that_is_made_needs_no_file() -> None:
    assert unfamiliar(["random-tokens", "news=n.csv", "gaussian-noise=train"]) == {
        "random-tokens": None,
        "news": "n.csv",
        "gaussian-noise": "train",
    }
    for words in (["news"], ["news="], ["=n.csv"], ["a/b=n.csv"], ["random-tokens", "random-tokens=x"]):
        with pytest.raises(InputError, match="--ood"):
            unfamiliar(words)


@given(st.lists(st.text(max_size=12), max_size=4))
def test_words_are_understood_or_refused(words: list[str]) -> None:
    for read in (lambda: pairs(words, "--set"), lambda: named_files(words), lambda: weights(",".join(words))):
        with contextlib.suppress(InputError):
            read()


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.from_regex(r"[a-z0-9.=]{1,8}", fullmatch=True)))
def test_pairs_come_back_as_they_were_written(known: dict[str, str]) -> None:
    assert pairs([f"{key}={value}" for key, value in known.items()], "--set") == known
