import json
from pathlib import Path

import pyarrow as pa
import pytest
from PIL import Image

from calmix.data import read_examples, read_table, write_table
from calmix.data.reading import holds_table, names_hub, read_ahead, read_files
from calmix.errors import InputError


@pytest.fixture
def file(tmp_path):
    def make(content, name="train.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make


def lines(*rows):
    return "\n".join(json.dumps(row) for row in rows)


def test_a_table_of_texts(file):
    examples = read_examples(file("text,label,page\ngood,pos,007\nbad,neg,NA\nfine,pos,\n"))
    assert examples.kind == "text"
    assert examples.column("text") == ["good", "bad", "fine"]
    assert examples.labels.tolist() == [1, 0, 1]
    assert examples.label_names == ("neg", "pos")
    assert examples.column("page") == ["007", "NA", ""]
    assert examples.targets is None


def test_the_same_rows_in_any_format_are_the_same_examples(tmp_path):
    table = pa.table({"text": ["a", "b\nc", "é"], "text_b": ["d", "e", "f"], "label": ["x", "y", "x"]})
    digests = set()
    for suffix in (".csv", ".tsv.gz", ".jsonl.xz", ".parquet", ".csv.zst", ".json"):
        write_table(table, tmp_path / f"a{suffix}")
        digests.add(read_examples(tmp_path / f"a{suffix}").digest())
    assert len(digests) == 1


def test_a_source_may_be_a_string_or_a_path(file):
    path = file("text,label\na,x\n")
    assert read_examples(str(path)).source == read_examples(Path(path)).source == str(path)


def test_a_single_image_is_told_from_a_table(file):
    with pytest.raises(InputError, match=r"photo\.JPG: is a single image; give the folder it is in"):
        read_examples(file(b"\xff\xd8", "photo.JPG"))


def test_image_files_may_be_named_one_by_one_where_no_label_is_needed(tmp_path):
    files = [str(tmp_path / name) for name in ("b.png", "a.PNG")]
    for value, name in enumerate(files):
        Image.new("RGB", (4, 4), (20 * value, 0, 0)).save(name)
    single = read_examples(files[1], labelled=False)
    assert (single.kind, len(single), single.labels.tolist()) == ("image", 1, [-1])
    both = read_files(files, labelled=False)
    assert both.column("image_from") == files
    assert [image[0, 0, 0] for image in both.images] == [0, 20]
    assert both.ids[1] == single.ids[0]
    with pytest.raises(InputError, match="images in files have no columns: leave out --text-b"):
        read_files(files, text_b="other")
    with pytest.raises(InputError, match="is no image file; give one table or folder alone, or image files only"):
        read_files([files[0], str(tmp_path)], labelled=False)


def test_several_sources_are_read_as_one_only_if_they_are_images(file):
    path = str(file("text\na\n"))
    assert len(read_files([path], labelled=False)) == 1
    with pytest.raises(InputError, match=r"train\.csv: is no image file"):
        read_files([path, path], labelled=False)


def test_a_file_that_is_not_there_is_no_data_set_of_the_hub():
    for name in ("nowhere.PNG", "nowhere.xlsx", "nowhere.txt"):
        assert not names_hub(name)
    assert names_hub("org/name")


def test_a_table_that_was_read_before_is_not_read_again(file):
    path = file("text\na\nb\n")
    table = read_table(path)
    path.unlink()
    assert read_examples(path, labelled=False, table=table).column("text") == ["a", "b"]


def test_tables_are_read_ahead_with_the_columns_that_a_model_remembers(file, tmp_path):
    known, odd = str(file("body,kind\na,x\n", "a.csv")), str(file("body,what\na,x\n", "b.csv"))
    (tmp_path / "run").mkdir()
    model = str(tmp_path / "run")
    with pytest.raises(InputError, match="no column looks like the label"):
        read_ahead(model, [known], {})
    (tmp_path / "run" / "config.json").write_text('{"calmix_columns": {"text": "body", "label": "kind"}}')
    found = read_ahead(model, [known, str(tmp_path)], {"text": None, "label": None})
    assert found[known].to_pydict() == {"body": ["a"], "kind": ["x"]}
    assert list(found) == [known]  # images in a folder have no columns
    assert list(read_ahead(model, [known, odd], {}, labelled=False)) == [known, odd]
    with pytest.raises(InputError, match=r"b\.csv: no column looks like the label"):
        read_ahead(model, [known, odd], {})
    assert read_ahead("org/name", [odd], {}) == {}  # what that one remembers is on the hub


def test_a_table_of_pairs(file):
    examples = read_examples(file("premise,hypothesis,gold_label\na,b,x\nc,d,y\n"))
    assert examples.kind == "pair"
    assert examples.column("text_b") == ["b", "d"]


def test_multiple_choice_from_json_and_from_csv(file):
    rows = [{"ctx": "q", "endings": ["a", "b"], "label": "1"}, {"ctx": "r", "endings": ["c", "d", "e"], "label": "2"}]
    from_json = read_examples(file(lines(*rows), "a.jsonl"))
    cells = "".join(
        f'{row["ctx"]},"{json.dumps(row["endings"]).replace(chr(34), chr(34) * 2)}",{row["label"]}\n' for row in rows
    )
    from_csv = read_examples(file("ctx,endings,label\n" + cells))
    assert from_json.kind == "choices"
    assert from_json.labels.tolist() == [1, 2]
    assert from_json.choice_counts.tolist() == [2, 3]
    assert from_csv.digest() == from_json.digest()


def test_numbered_columns_of_choices(file):
    examples = read_examples(file("startphrase,ending0,ending1,label\nq,a,b,1\nr,c,d,0\n"))
    assert examples.column("choices") == [["a", "b"], ["c", "d"]]


def test_votes_in_json_and_in_csv(file):
    mapping = read_examples(
        file(lines({"text": "a", "v": {"x": 1, "y": 3}}, {"text": "b", "v": {"x": 2}}), "a.jsonl"), votes="v"
    )
    listed = read_examples(file('text,v\na,"[1, 3]"\nb,"[2, 0]"\n'), votes="v", label_names=["x", "y"])
    assert mapping.targets.tolist() == listed.targets.tolist() == [[0.25, 0.75], [1, 0]]
    assert mapping.labels.tolist() == listed.labels.tolist() == [1, 0]


def test_labels_are_required_ignored_or_taken_where_there_are_any(file):
    whole, part, none = (
        file("text,label\na,x\nb,y\n"),
        file("text,label\na,x\nb,\n", "p.csv"),
        file("text\na\nb\n", "n.csv"),
    )
    assert read_examples(whole, labelled=None).labels.tolist() == [0, 1]
    assert read_examples(part, labelled=None).labels.tolist() == [0, -1]
    assert read_examples(none, labelled=None).labels.tolist() == [-1, -1]
    for path in (whole, part, none):
        ignored = read_examples(path, labelled=False)
        assert ignored.labels.tolist() == [-1, -1]
        assert ignored.ids == read_examples(whole).ids
    assert read_examples(whole, labelled=False).column("label") == ["x", "y"]
    for path in (part, none):
        with pytest.raises(InputError):
            read_examples(path)


def test_a_dev_file_is_read_with_the_label_names_of_training(file):
    examples = read_examples(file("text,label\na,y\n"), label_names=("x", "y", "z"))
    assert examples.labels.tolist() == [1]
    assert examples.label_names == ("x", "y", "z")


def test_a_dev_file_of_multiple_choice_is_read_with_no_label_names(file):
    examples = read_examples(file(lines({"text": "q", "choices": ["a", "b"], "label": 1}), "a.jsonl"), label_names=())
    assert examples.labels.tolist() == [1]


BAD = [
    ("train.csv", "", {}, "the file is empty"),
    ("train.csv", "text,label\n", {}, "there are no rows"),
    ("train.txt", "text,label\na,x\n", {}, "the file name does not say what the file is"),
    ("train.csv", "I love it,1\nawful,0\n", {}, "(columns: 'I love it', '1'); its first line looks like a row: put"),
    ("train.csv", "words,label\na,x\n", {}, "no column looks like the text; name it with --text (columns: 'words', "),
    ("train.csv", "text,label\na,x\n", {"text": "txt"}, "--text: no column 'txt'; did you mean 'text'?"),
    ("train.csv", "text,label\na,x\nb,c,y\n", {}, "line 3 has 3 fields, the header has 2"),
    ("train.csv", b"text,label\na,x\n\xe9,y\n", {}, "line 3 is not UTF-8"),
    ("train.csv", "text,label\na,x\n ,y\n", {}, "no text in column 'text' at row 3 (the header is row 1); fill"),
    ("train.csv", "text,label\na,x\nb,\n", {}, "no label in column 'label' at row 3 (the header is row 1)"),
    ("train.csv", "text,label\na,0.37\nb,1\n", {}, "regression, which calmix does not do"),
    ("train.csv", "text,label\na,x\nb,y\n", {"label_names": ["x", "z"]}, "unknown label 'y' in column 'label' at row"),
    ("train.csv", "text,label,label\na,x,y\n", {}, "several columns are called 'label'"),
    ("train.csv", "id,text,label\n1,a,x\n1,b,y\n", {}, "the id '1' in column 'id' is at row 2"),
    ("train.csv", 'text,choices,label\na,"[""x""]",0\n', {}, "fewer than two choices in column 'choices' at row 2"),
    ("train.jsonl", '{"text": "a", "label": "x"}\n{"text": ', {}, "line 2 is not valid JSON"),
    ("train.jsonl", '{"text": "a", "label": "x"}\n[1]', {}, "line 2 is not a JSON object"),
    ("train.jsonl", '{"text": "a", "label": "x"}\n{"label": "x"}', {}, "no text in column 'text' at row 2;"),
    ("train.jsonl", '{"text": "a", "label": ["x", "y"]}', {}, "multi-label data is not supported"),
    ("train.jsonl", '{"text": "a", "choices": ["b", "c"], "label": 2}', {}, "choice 2 in column 'label' at row 1"),
    ("train.jsonl", '{"text": ["a"], "label": "x"}', {}, "column 'text' holds"),
    ("train.csv.gz", "text,label\na,x\n", {}, "this is not valid .gz data"),
    ("train.parquet", "text,label\na,x\n", {}, "not a whole Parquet file"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "options", "message"), BAD)
def test_what_cannot_be_used_is_named_on_one_line(file, name, content, options, message):
    path = file(content, name)
    with pytest.raises(InputError) as error:
        read_examples(path, **options)
    assert message in str(error.value)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"train\.csv: no such file$"):
        read_examples(tmp_path / "train.csv")
    with pytest.raises(InputError, match=r"train: no such file$"):
        read_examples(tmp_path / "train")


def test_text_from_data_is_printed_safely(file):
    with pytest.raises(InputError) as error:
        read_examples(file(lines({"text": "a", "label": "\x1b[2Jevil\n"}), "a.jsonl"), label_names=["x"])
    assert "\x1b" not in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_read_as_a_table_is_told(tmp_path):
    assert holds_table("train.csv")
    assert holds_table("train.jsonl.gz")
    assert not any(map(holds_table, (str(tmp_path), "one.png", "train-images-idx3-ubyte.gz", "org/name")))
