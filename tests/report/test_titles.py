"""What figures are called."""

from calmix.report.titles import DECIMALS, HIGHER, TITLES
from calmix.study.collecting import FIGURE_COLUMNS


def test_every_figure_of_a_study_has_a_title() -> None:
    assert set(FIGURE_COLUMNS) | {"seconds"} == set(TITLES)


def test_a_title_says_percent_where_there_are_no_decimals_of_its_own() -> None:
    assert {name for name, title in TITLES.items() if not title.endswith("(%)")} == set(DECIMALS)


def test_only_shares_of_right_answers_are_better_higher() -> None:
    assert set(HIGHER) == {"accuracy", "mcc", "macro_f1"}
