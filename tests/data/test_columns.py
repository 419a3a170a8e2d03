import pyarrow as pa
import pytest

from calmix.data.columns import find_columns, with_usual
from calmix.data.origin import Origin
from calmix.errors import InputError

ORIGIN = Origin("train.csv")


def find(*names, cells=None, **options):
    table = pa.table({name: (cells or {}).get(name, ["a", "b"]) for name in names})
    return find_columns(table, ORIGIN, **options)


LISTS = [["x", "y"], ["x", "y"]]


@pytest.mark.parametrize(
    ("names", "text", "text_b", "label"),
    [
        (["text", "label"], "text", None, "label"),
        (["Sentence", " LABEL "], "Sentence", None, " LABEL "),
        (["review", "sentiment"], "review", None, "sentiment"),
        (["text", "title", "category"], "text", None, "category"),
        (["premise", "hypothesis", "gold_label"], "premise", "hypothesis", "gold_label"),
        (["question1", "question2", "label"], "question1", "question2", "label"),
        (["label", "sentence2", "sentence1"], "sentence1", "sentence2", "label"),
        (["text", "text_b", "label", "class"], "text", "text_b", "label"),
        (["text", "comment", "label"], "text", None, "label"),
    ],
)
def test_columns_are_found_by_their_usual_names(names, text, text_b, label):
    found = find(*names)
    assert (found.text, found.text_b, found.label) == (text, text_b, label)


@pytest.mark.parametrize(
    ("names", "text", "choices"),
    [
        (["text", "choices", "label"], "text", ("choices",)),
        (["ctx", "ctx_a", "endings", "label"], "ctx", ("endings",)),
        (["sent1", "sent2", "startphrase", "ending10", "ending9", "label"], "startphrase", ("ending9", "ending10")),
        (["premise", "choice1", "choice2", "label"], "premise", ("choice1", "choice2")),
        (["sentence", "Option_1", "Option_2", "answer"], "sentence", ("Option_1", "Option_2")),
    ],
)
def test_multiple_choice_is_found_by_a_column_of_lists_or_numbered_columns(names, text, choices):
    found = find(*names, cells={"choices": LISTS, "endings": LISTS})
    assert (found.text, found.text_b, found.choices) == (text, None, choices)


def test_a_column_of_options_without_lists_is_not_multiple_choice():
    assert find("text", "options", "label").choices == ()
    assert find("text", "options", "label", cells={"options": ['["a", "b"]', '["c", "d"]']}).choices == ("options",)


def test_once_the_text_is_named_no_second_text_is_guessed():
    assert find("premise", "hypothesis", "label", text="hypothesis").text_b is None
    assert find("text", "choices", "label", cells={"choices": LISTS}, text="text").choices == ()


def test_named_columns_are_taken_and_the_rest_is_found():
    found = find("a", "b", "text", "kind", "key", "label", text="a", text_b="b", label="kind", id="key")
    assert (found.text, found.text_b, found.label, found.id) == ("a", "b", "kind", "key")
    assert find("text", "other", "label", text_b="other").text == "text"


def test_numbered_choices_are_named_by_what_they_have_in_common():
    assert find("text", "reply1", "reply2", "label", choices="reply").choices == ("reply1", "reply2")


@pytest.mark.parametrize(
    ("names", "id"),
    [(["id", "text", "label"], "id"), (["guid", "text", "label"], "guid"), (["text", "label"], None)],
)
def test_an_id_column_is_found(names, id):
    assert find(*names).id == id


@pytest.mark.parametrize(("cells", "id"), [([1, 2], "idx"), ([1, 1], None), ([1, None], None)])
def test_idx_is_an_id_only_if_its_cells_differ(cells, id):
    assert find("idx", "text", "label", cells={"idx": cells}).id == id


def test_labels_are_looked_for_as_far_as_they_are_wanted():
    assert find("text", labelled=False).label is None
    assert find("text", "label", "votes", labelled=False, votes="votes").label is None
    assert find("text", labelled=None).label is None
    assert find("text", "label", labelled=None).label == "label"
    assert find("text", "topic", "emotion", labelled=None).label is None
    assert find("text", "votes", votes="votes").label is None


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["a", "label"], {}, "no column looks like the text; name it with --text (columns: 'a', 'label')"),
        (["text", "a"], {}, "no column looks like the label; name it with --label (columns: 'text', 'a')"),
        (["review", "comment", "label"], {}, "several columns could be the text ('review', 'comment')"),
        (["text", "topic", "emotion"], {}, "several columns could be the label ('topic', 'emotion')"),
        (["text", "text2", "sent2", "label"], {}, "several columns could be the second text"),
        (["text", "uid", "guid", "label"], {}, "several columns could be the id ('uid', 'guid'); name one with --id"),
        (["text", "Text", "label"], {}, "several columns could be the text ('text', 'Text')"),
        (["text", "label"], {"text": "txet"}, "--text: no column 'txet'; did you mean 'text'? (columns: "),
        (["text", "label"], {"text_b": "x"}, "--text-b: no column 'x' (columns: 'text', 'label')"),
        (["text", "label"], {"label": "Labels"}, "--label: no column 'Labels'; did you mean 'label'?"),
        (["text", "label"], {"id": "x"}, "--id: no column 'x'"),
        (["text", "label"], {"votes": "x"}, "--votes: no column 'x'"),
        (["text", "label"], {"choices": "x"}, "--choices: no column 'x'"),
        (["text", "a", "label"], {"choices": "a", "text_b": "label"}, "not both"),
        (["text", "label"], {"text": "text", "label": "text"}, "one column cannot be two things: 'text', 'text'"),
    ],
)  # fmt: skip
def test_what_is_not_clear_is_asked(names, options, message):
    with pytest.raises(InputError) as error:
        find(*names, **options)
    assert message in str(error.value)
    assert str(error.value).startswith("train.csv: ")


def test_a_named_column_may_differ_in_case_and_blanks_where_only_one_does():
    found = find("My  Comment", "the verdict ", text="my comment", label="The Verdict")
    assert (found.text, found.label) == ("My  Comment", "the verdict ")
    assert find("Text", "text", "label", text="text").text == "text"
    with pytest.raises(InputError, match="no column 'TEXT'"):
        find("Text", "text", "label", text="TEXT")
    with pytest.raises(InputError, match="one column cannot be two things"):
        find("Comment", "label", text="comment", label="COMMENT")


def test_column_names_from_the_file_are_printed_safely():
    with pytest.raises(InputError) as error:
        find("evil\n\x1b[2J", "label")
    assert "\n" not in str(error.value)
    assert "\x1b" not in str(error.value)


USUAL = {"text": "Body", "text_b": "Reply", "label": "Verdict"}


@pytest.mark.parametrize(
    ("given", "names", "found"),
    [
        ({}, ["body", "Reply", "VERDICT"], {"text": "Body", "text_b": "Reply", "label": "Verdict"}),
        ({}, ["Body", "Verdict"], {"label": "Verdict"}),  # half of a pair is no pair
        ({"text": "Subject"}, ["Subject", "Body", "Reply", "Verdict"], {"text": "Subject", "label": "Verdict"}),
        ({"label": "Reply"}, ["Body", "Reply", "Verdict"], {"label": "Reply"}),
        ({}, ["text", "label"], {}),
    ],
)
def test_usual_columns_are_taken_where_they_are_and_none_is_named(
    given: dict[str, str], names: list[str], found: dict[str, str]
) -> None:
    asked = dict.fromkeys(["text", "text_b", "choices", "label", "id", "votes"]) | given
    assert {role: name for role, name in with_usual(asked, USUAL, names).items() if name is not None} == found
