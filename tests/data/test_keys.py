import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from calmix.data.keys import content_ids, fold, folded_keys, groups_of


def test_ids_are_sixteen_hex_digits_and_repeats_are_numbered():
    first, second, other, third = content_ids(pa.table({"text": ["a", "a", "b", "a"]}))
    assert len(first) == 16
    assert int(first, 16) >= 0
    assert (second, third) == (f"{first}-2", f"{first}-3")
    assert other not in (first, second, third)


def test_ids_do_not_change_between_versions():  # printf "6:a text" | b2sum -l 64
    assert content_ids(pa.table({"text": ["a text"]})) == ["08e8daea3b6b0d32"]
    assert content_ids(pa.table({"text": ["a"], "text_b": ["b"]})) == ["112a0c0506f1d70b"]


def test_where_one_text_ends_and_the_next_begins_matters():
    pairs = pa.table({"text": ["ab", "a"], "text_b": ["c", "bc"]})
    choices = pa.table({"text": ["q", "q"], "choices": [["ab", "c"], ["a", "bc"]]})
    assert len(set(content_ids(pairs))) == 2
    assert len(set(content_ids(choices))) == 2


def test_other_columns_do_not_change_the_id():
    texts = {"text": ["a", "b"]}
    assert content_ids(pa.table({**texts, "label": [0, 1]})) == content_ids(pa.table({**texts, "label": [1, 0]}))


@given(st.lists(st.text(max_size=3), max_size=20), st.randoms())
def test_ids_follow_their_texts_under_permutation(texts, random):
    shuffled = random.sample(texts, len(texts))

    def pairs(rows):
        ids = content_ids(pa.table({"text": pa.array(rows, pa.string())}))
        assert len(set(ids)) == len(ids)
        return sorted(zip(rows, ids, strict=True))

    assert pairs(texts) == pairs(shuffled)


def test_case_composition_and_white_space_fold_away():
    assert fold("  Stra\u00dfe\tCafe\u0301\n") == fold("STRASSE CAF\u00c9")
    assert fold("A  b") == "a b"
    assert fold("ab") != fold("a b")


@given(st.text())
def test_folding_twice_is_folding_once(text):
    assert fold(fold(text)) == fold(text)


@given(st.text(alphabet=st.characters(max_codepoint=127)))
def test_folding_ascii_quickly_is_folding(text):
    assert fold(text) == fold(text + " \u00e9").removesuffix("\u00e9").strip()


def test_rows_are_grouped_by_their_folded_texts():
    table = pa.table({"text": ["A  a", "b", "a A"], "text_b": ["x", "x", "X"]})
    group, keys = groups_of(folded_keys(table))
    assert group.tolist() == [0, 1, 0]
    assert len(keys) == 2
