"""What figures are called."""

from calmix.report.titles import DECIMALS, HIGHER, TITLES, model_title
from calmix.study.collecting import FIGURE_COLUMNS


def test_every_figure_of_a_study_has_a_title() -> None:
    assert set(FIGURE_COLUMNS) | {"seconds"} == set(TITLES)


def test_a_title_says_percent_where_there_are_no_decimals_of_its_own() -> None:
    assert {name for name, title in TITLES.items() if not title.endswith("(%)")} == set(DECIMALS)


def test_only_shares_of_right_answers_are_better_higher() -> None:
    assert set(HIGHER) == {"accuracy", "mcc", "macro_f1"}


def test_a_model_is_called_by_its_folder_and_a_sentence_cnn_by_its_name() -> None:
    assert model_title("models/bert") == "bert"
    assert model_title("minilm") == "minilm"
    assert model_title("sentence-cnn:/data/glove.txt.xz") == "sentence-cnn"
