"""Broken and hostile inputs: the files, the command that is given them, and what its one line must say.

In commands, MODEL is a tiny classifier, RUN a finished run, MAP a finished map, and GOOD a table that is fine. What
makes a file is its bytes, or a function of the place it goes to; `checkpoint(...)` changes a copy of the tiny model.
"""

import gzip
import json
import lzma
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet
from bad_files import (
    Made,
    checkpoint,
    cut,
    doubled,
    drop,
    folder,
    idx,
    link,
    many,
    parquet,
    pickled,
    png,
    put,
    rows,
    run_of,
    study,
    weights,
    zipped,
)


@dataclass(frozen=True)
class Bad:
    """An input that must be refused."""

    command: str
    says: str
    files: Mapping[str, Made]


def _tables() -> dict[str, Bad]:
    label = "text,label"
    files: dict[str, tuple[str, bytes, str]] = {
        "an empty file": ("csv", b"", "the file is empty"),
        "only a byte order mark": ("csv", b"\xef\xbb\xbf", "the file is empty"),
        "only line ends": ("csv", b"\n\n\n", "the file is empty"),
        "a header alone": ("csv", rows(label), "there are no rows"),
        "a row too long": ("csv", rows(label, "a,x", "b,y,z"), "line 3 has 3 fields, the header has 2"),
        "a row too short": ("csv", rows(label, "a,x", "b"), "line 3 has 1 fields, the header has 2"),
        "a quote never closed": ("csv", rows(label, "a,x", '"b,y'), "the quote that opens on line 3 is never closed"),
        "text after a quote": ("csv", rows(label, '"a', 'b"c,x'), "line 3 has text after a closing quote"),
        "a column twice": ("csv", rows("text,text,label", "a,b,x"), "several columns are called 'text'"),
        "semicolons": ("tsv", rows("text;label", "a;x"), "is separated by ';'; save it with commas"),
        "semicolons: a cell too many": ("csv", rows("text;label", "a;b;x"), "put quotes around cells that contain semicolons"),
        "tabs in a csv": ("csv", rows("text\tlabel", "a\tx"), "save it with commas (.csv) or tabs (.tsv)"),
        "bars in a csv": ("csv", rows("text|label", "a, b|x"), "is separated by '|'; save it with commas (.csv) or tabs (.tsv)"),
        "a title above the header": ("csv", rows("Tickets of May,,", "id,text,label", "1,a,x"), "the first line, 'Tickets of May', names 1 of 3 columns: if it is a title"),
        "a title above two columns": ("csv", rows("Tickets of May,", label, "a,x"), "if its first line is a title, remove what is above the names of the columns"),
        "a title alone in its line": ("csv", rows("Tickets of May", label, "a,x"), "or remove the first line if it is a title"),
        "not utf-8": ("csv", rows(label, "a,x") + b"\xff\xfe,y\n", "line 3 is not UTF-8"),
        "latin-1": ("csv", "text,label\nna\xefve,x\n".encode("latin-1"), "line 2 is not UTF-8"),
        "utf-16": ("csv", "text,label\na,x\n".encode("utf-16"), "line 1 is not UTF-8"),
        "no text": ("csv", rows("title,label", "a,x"), "no column looks like the text; name it with --text"),
        "no label": ("csv", rows("text,what", "a,x"), "no column looks like the label; name it with --label"),
        "two texts": ("csv", rows("review,sentence,label", "a,b,x"), "several columns could be the text"),
        "two labels": ("csv", rows("text,category,class", "a,x,y"), "several columns could be the label"),
        "an empty text": ("csv", rows(label, "a,x", " ,y"), "no text in column 'text' at row 3"),
        "an empty label": ("csv", rows(label, "a,x", "b,"), "no label in column 'label' at row 3"),
        "one class": ("csv", rows(label, "a,x", "b,x"), "every row has the same label, 'x': nothing to learn"),
        "a class per row": ("csv", rows(label, *(f"t{i},l{i}" for i in range(300))), "300 different labels in 300 rows"),
        "two rows": ("csv", rows(label, "a,x", "b,y"), "2 rows with 2 different texts are too few to set some aside"),
        "several labels": ("csv", rows(label, *(f't{i},"[""x"", ""y""]"' for i in range(9))), "multi-label data is not supported"),
        "fractions": ("csv", rows(label, "a,0.5", "b,1.5"), "is a number with a fraction"),
        "json, cut short": ("jsonl", rows('{"text": "a", "label": "x"}', '{"text": "b", '), "line 2 is not valid JSON"),
        "json, a list a line": ("jsonl", rows("5", "6"), "line 1 is not a JSON object"),
        "json, strings": ("jsonl", rows('"text"'), "line 1 is not a JSON object"),
        "json, an open array": ("json", b'[{"text": "a", "label": "x"}', "not valid JSON"),
        "json, an array of arrays": ("json", b"[[1, 2], [3, 4]]", "item 1 is not a JSON object"),
        "json, an empty array": ("json", b"[]", "there are no rows"),
        "json, too deep": ("jsonl", b'{"text": ' + b"[" * 100_000 + b"\n", "line 1 is not valid JSON"),
        "json, not utf-8": ("jsonl", b'{"text": "\xff"}\n', "line 1 is not UTF-8"),
        "json, labels are objects": ("jsonl", rows('{"text": "a", "label": {"b": 1}}'), "column 'label' holds 'struct<b: int64>', not labels"),
        "json, labels are lists": ("jsonl", rows('{"text": "a", "label": ["x", "y"]}'), "column 'label' holds several labels per row: multi-label data is not s"),
        "parquet, text": ("parquet", b"text,label\na,x\n", "not a whole Parquet file"),
        "parquet, cut short": ("parquet", parquet(text=["a"] * 50, label=["x", "y"] * 25)[:-30], "not a whole Parquet"),
        "parquet, magic alone": ("parquet", b"PAR1PAR1", "not a whole Parquet file"),
        "parquet, no rows": ("parquet", parquet(text=pa.array([], pa.string()), label=pa.array([], pa.string())), "there are no rows"),
        "parquet, a column twice": ("parquet", doubled(), "several columns are called 'text'"),
        "parquet, labels of bytes": ("parquet", parquet(text=list("abcdefgh"), label=[b"\xff", b"x"] * 4), "holds bytes, not labels"),
        "parquet, texts of bytes": ("parquet", parquet(text=[b"\xff", b"x"] * 4, label=list("xyxyxyxy")), "column 'text' holds 'binary', not text"),
        "parquet, everything null": ("parquet", parquet(text=pa.nulls(4), label=pa.nulls(4)), "no text in column 'text' at row 1"),
        "gzip, cut short": ("csv.gz", gzip.compress(rows(label, *many(500)))[:-20], "the file is cut short"),
        "gzip, not": ("csv.gz", rows(label, "a,x"), "this is not valid .gz data"),
        "xz, cut short": ("csv.xz", lzma.compress(rows(label, *many(500)))[:-20], "the file is cut short"),
        "xz, not": ("csv.xz", rows(label, "a,x"), "this is not valid .xz data"),
        "zstd, not": ("jsonl.zst", rows("{}"), "this is not valid .zst data"),
        "a spreadsheet": ("xlsx", b"PK\x03\x04", "is a spreadsheet; save the sheet as CSV"),
        "a spreadsheet called CSV": ("csv", b"PK\x03\x04\x14\x00", "is a spreadsheet or an archive, whatever its name"),
        "no ending": ("", rows(label, "a,x"), "the file name does not say what the file is"),
    }  # fmt: skip
    found = {}
    for name, (ending, content, says) in files.items():
        file = f"table.{ending}" if ending else "table"
        found[f"table: {name}"] = Bad(f"train {file} --model MODEL --out new", says, {file: content})
    good = {"good.csv": rows(label, *many())}
    other = {**good, "other.csv": rows(label, *many(), "late,unheard")}
    choices = rows(*(json.dumps({"text": "q", "choices": ["a", "b"], "label": k}) for k in (0, 1, 2)))
    votes = "text,label,votes"
    found |= {
        "table: not there": Bad("train nowhere.csv --model MODEL --out new", "nowhere.csv: no such file", {}),
        "table: mistyped": Bad("train godo.csv --model MODEL --out new", "godo.csv: no such file; did you mean 'good.csv'?", good),
        "table: mistyped, to predict": Bad("predict RUN good.json", "good.json: no such file; did you mean 'good.csv'?", good),
        "table: a text file that is not there": Bad("predict RUN nothing.txt", "nothing.txt: no such file", {}),
        "table: predictions onto the texts": Bad("predict RUN good.csv --out ./good.csv", "--out good.csv: is one of the tables that are read", good),
        "table: predictions onto a link to the texts": Bad("predict RUN good.csv --out l.csv", "--out l.csv: is one of the tables that are read", {**good, "l.csv": link("good.csv")}),
        "table: dev data twice": Bad("train good.csv --dev other.csv --dev-fraction 0.1 --model MODEL --out new", "give --dev or --dev-fraction, not both", other),
        "table: a group that is no column": Bad("evaluate RUN good.csv --group lable --out new", "--group: no column 'lable'; did you mean 'label'? (columns: 'text', 'label')", {"good.csv": rows("text,label", "the cat,animal", "bread,food")}),
        "table: an address": Bad("train https://example.com/good.csv --model MODEL --out new", "https://example.com/good.csv: is an address; download it, and give the file", {}),
        "table: an address, to predict": Bad("predict RUN s3://bucket/good.csv", "s3://bucket/good.csv: is an address; download it", {}),
        "table: in the place of the model, to predict": Bad("predict good.csv run", "good.csv: is a file, and run a model; the model comes first: calmix predict run good.csv", {**good, "run": run_of()}),
        "table: in the place of the model, to evaluate": Bad("evaluate good.csv run", "the model comes first: calmix evaluate run good.csv", {**good, "run": run_of()}),
        "table: in the place of the model, to calibrate": Bad("calibrate good.csv run --out new", "the model comes first: calmix calibrate run good.csv", {**good, "run": run_of()}),
        "table: a guarantee in words": Bad("train good.csv --guarantee high --model MODEL --out new", "'high' is not a number, such as 0.95 or 95%", good),
        "table: a guarantee of 95": Bad("train good.csv --guarantee 95 --model MODEL --out new", "not 95.0; for 95 %, give 0.95", good),
        "table: a guarantee of 100%": Bad("train good.csv --guarantee 100% --model MODEL --out new", "--guarantee must lie between 0 and 1, and be neither, not 1.0", good),
        "table: a folder": Bad("train full --model MODEL --out new", "this is a folder without images", {"full": folder}),
        "table: a dangling link": Bad("train l.csv --model MODEL --out new", "l.csv: no such file", {"l.csv": link("no")}),
        "table: a link to itself": Bad("train l.csv --model MODEL --out new", "no such file", {"l.csv": link("l.csv")}),
        "table: a device": Bad("train l.csv --model MODEL --out new", "the file is empty", {"l.csv": link("/dev/null")}),
        "table: the label named wrong": Bad("train good.csv --label lable --model MODEL --out new", "did you mean 'label'?", good),
        "table: the text named wrong": Bad("train good.csv --text txt --model MODEL --out new", "--text: no column 'txt'", good),
        "table: one column for two": Bad("train good.csv --text text --label text --model MODEL --out new", "one column cannot be two things", good),
        "table: pairs and choices": Bad("train good.csv --text-b label --choices label --model MODEL --out new", "one column cannot be two things: 'label', 'label'", good),
        "table: dev with a new label": Bad("train good.csv --dev other.csv --model MODEL --out new", "other.csv: unknown label 'unheard'", other),
        "table: test with a new label": Bad("train good.csv --test other.csv --model MODEL --out new", "other.csv: unknown label 'unheard'", other),
        "table: ood without a name": Bad("train good.csv --ood good.csv --model MODEL --out new", "--ood takes NAME=FILE, not 'good.csv'", good),
        "table: ood outside": Bad("train good.csv --ood ../x=good.csv --model MODEL --out new", "'../x' must be letters, digits", good),
        "table: an id twice": Bad("train ids.csv --model MODEL --out new", "the id '1' in column 'id' is at row 2", {"ids.csv": rows("id,text,label", *(f"1,{line}" for line in many()))}),
        "table: a choice that is not there": Bad("train q.jsonl --model MODEL --out new", "choice 2 in column 'label' at row 3 does not exist", {"q.jsonl": choices}),
        "table: no choices": Bad("train q.jsonl --model MODEL --out new", "fewer than two choices in column 'choices' at row 1", {"q.jsonl": rows('{"text": "q", "choices": [], "label": 0}')}),
        "table: votes below 0": Bad("train v.csv --votes votes --model MODEL --out new", "votes in column 'votes' at row 2", {"v.csv": rows(votes, 'a,x,"{""x"": -1, ""y"": 2}"', 'b,y,"{""x"": 1, ""y"": 2}"')}),
        "table: votes of words": Bad("train v.csv --votes votes --model MODEL --out new", "holds no votes: 'many'", {"v.csv": rows(votes, "a,x,many", "b,y,few")}),
        "table: twin labels": Bad("train t.csv --model MODEL --out new", "t.csv: labels differ in case or blanks alone: 'Animal' (1 row) and 'animal' (9 rows); --merge-labels", {"t.csv": rows("text,label", "a bird,Animal", *(f"the cat {i},animal" for i in range(9)), "bread,food")}),
        "table: twin labels, to map": Bad("map t.csv --model MODEL --out new", "'hot␣␣food' (1 row) and 'hot food' (9 rows); --merge-labels", {"t.csv": rows("text,label", "soup,hot  food", *(f"bread {i},hot food" for i in range(9)), "a bird,animal")}),
        "table: no votes": Bad("train v.csv --votes votes --model MODEL --out new", "no votes in column 'votes' at row 2", {"v.csv": rows(votes, 'a,x,"{""x"": 0, ""y"": 0}"', 'b,y,"{""x"": 1, ""y"": 0}"')}),
        "table: two to predict": Bad("predict RUN good.csv other.csv", "good.csv: is no image file; give one table or folder alone", other),
        "table: a pair for a single text": Bad("predict RUN p.csv --text-b b", "holds pairs of texts", {"p.csv": rows("text,b", "a,c")}),
    }  # fmt: skip
    return found


def _studies() -> dict[str, Bad]:
    command = "study study.toml --data . --out new"
    changes: dict[str, tuple[str, str, str]] = {
        "not toml": ("[task.t]", "[task.t", "is not valid TOML"),
        "a key twice": ('test = "train"', 'test = "train"\ntest = "train"', "is not valid TOML"),
        "an unknown key": ("[task.t]", "[task.t]\nsplits = 3", "unknown key 'splits'"),
        "no method": ('[[method]]\nrecipe = "erm"\n', "", "needs at least one [[method]]"),
        "a recipe that is not there": ('"erm"', '"mixdown"', "there is no recipe 'mixdown'"),
        "an option that is not there": ('"erm"', '"erm"\noptions = { alpha = 1 }', "[[method]] 1: recipe erm has no option 'alpha'"),
        "two methods of one name": ('[[method]]\nrecipe = "erm"\n', '[[method]]\n[[method]]\n', "two methods are called 'erm'"),
        "a key of nobody": ("[task.t]", "x = 1\n[task.t]", "unknown key 'x' (known: title"),
        "no epochs": ("epochs = 1", "epochs = -1", "--epochs must be at least 0, not -1"),
        "epochs in words": ("epochs = 1", 'epochs = "three"', "--epochs must be a whole number"),
        "a setting that is not there": ("epochs = 1", "epoch = 1", "unknown key 'epoch'; did you mean 'epochs'?"),
        "a rate that is not finite": ("epochs = 1", "lr = nan", "--lr must be between 0 and 1"),
        "a task without a test set": ('test = "train"\n', "", "says nothing about 'test'"),
        "a file that is not there": ('train = "train"', 'train = "nowhere"', "nowhere: no such file"),
        "a file outside": ('train = "train"', 'train = "../train"', "files of a task are named relative to the data folder, and stay inside"),
        "a file by its whole path": ('train = "train"', 'train = "/etc/passwd"', "files of a task are named relative to the data folder, and stay inside"),
        "a file outside, hidden": ('train = "train"', 'train = "a/../../train"', "files of a task are named relative to the data folder, and stay inside"),
        "a file that is a number": ('train = "train"', "train = 5", "[task.t].train: must be a table, not 5"),
        "a domain outside": ('test = "train"', 'test = "train"\nood."../x" = "train"', "must be letters, digits"),
        "an unknown column": ('test = "train"', 'test = "train"\ncolumns = { body = "text" }', "unknown key 'body'"),
        "labels that are no lists": ('test = "train"', 'test = "train"\nlabels = { y = "yes" }', "[task.t].train.labels.y: list the labels that become 'y', as in [\"a\", "),
        "rows below 0": ('test = "train"', 'test = "train"\nrows = -1', "must be a whole number from 0"),
        "a figure that is not there": ('test = "train"', 'test = "train"\nfigure = "f1"', "figure: is one of"),
        "dev twice": ('test = "train"', 'test = "train"\ndev = "train"\ndev_from_test = 2', "[task.t]: has dev and dev_from_test"),
        "a teacher that is not there": ('"erm"', '"distil"\nteacher = "nobody"', "'nobody', which no method before it is"),
        "a pupil without a teacher": ('"erm"', '"distil"', "needs the name of its teacher"),
        "an ensemble of nobody": ('recipe = "erm"', 'ensemble = { of = "nobody" }', "'nobody', which is not there"),
        "an ensemble of itself": ('recipe = "erm"', 'name = "e"\nensemble = { of = "e" }', "which is made of others itself"),
        "an ensemble that is no table": ('recipe = "erm"', "ensemble = 5", "ensemble: is a table"),
        "a subset that is not there": ('recipe = "erm"', 'subset = "odd"', "subset: is one of"),
        "a fraction too large": ('recipe = "erm"', 'subset = "easy"\nfraction = 0.9', "must be above 0 and at most 0.5"),
        "what is varied is no list": ('recipe = "erm"', 'recipe = "erl"\nvary = { beta = 1 }', "[[method]] 1.vary.beta: list the values, as in [0.1, 0.4]"),
        "like a task that is not there": ('train = "train"', 'like = "nothing"\ntrain = "train"', "which is not there"),
        "deeply nested": ("epochs = 1", "epochs = " + "[" * 500 + "]" * 500, "is not valid TOML"),
    }  # fmt: skip
    heads = {
        "seeds below 0": ("seeds = [-1]\n", "seeds: is how many"),
        "no seeds": ("seeds = 0\n", "seeds must be at least 1, not 0"),
        "a seed twice": ("seeds = [1, 1]\n", "lists a seed twice"),
        "seeds in words": ('seeds = "three"\n', "seeds: is how many"),
        "bins of nothing": ("bins = 0\n", "bins: must be a whole number from 1"),
        "a spread that is not there": ('spread = "wide"\n', "spread: is one of std, error"),
        "figures that are not there": ('figures = ["accurasy"]\n', "did you mean 'accuracy'?"),
        "a task that is not there": ('tasks = ["nothing"]\n', "there is no task 'nothing'"),
        "a baseline of nobody": ('baseline = "nobody"\n', "baseline 'nobody' is no method's name"),
        "a title that is a number": ("title = 5\n", "title: must be text"),
        "a paper outside": (
            'paper = { file = "../p.csv", tables = ["1"], model = "m" }\n',
            "files of a task are named relative to the data folder, and stay inside",
        ),
        "a paper that is not there": (
            'paper = { file = "p.csv", tables = ["1"], model = "m" }\n',
            "p.csv: no such file",
        ),
        "a paper that is no table": ("paper = 5\n", "[paper]: is a table"),
    }
    found = {f"study: {name}": Bad(command, says, study(old, new)) for name, (old, new, says) in changes.items()}
    found |= {f"study: {name}": Bad(command, says, study(head=head)) for name, (head, says) in heads.items()}
    found |= {
        "study: not there": Bad("study no.toml --out new", "no.toml: no such file", {}),
        "study: not utf-8": Bad("study s.toml --out new", "s.toml: is not valid TOML", {"s.toml": b"title = '\xff'\n"}),
        "study: a folder": Bad("study s.toml --out new", "s.toml: cannot be read", {"s.toml": folder}),
        "study: no data": Bad("study study.toml --data nowhere --out new", "nowhere: is no folder to read data from", study()),
        "study: a link out of the data": Bad(
            "study study.toml --data data --out new", "leads out of the data folder",
            {**study(), "data": folder, "data/train.csv": link("../train.csv")},
        ),
        "study: a model that is not there": Bad(f"{command} --model ./no", "./no: no such folder", study()),
        "study: no workers": Bad(f"{command} --workers 0", "--workers must be at least 1", study()),
        "study: time that is none": Bad(f"{command} --minutes -1", "--minutes must be 0 or more", study()),
        "study: into a file": Bad("study study.toml --data . --out train.csv", "train.csv: is a file; --out must be a folder", study()),
    }  # fmt: skip
    return found


def _checkpoints() -> dict[str, Bad]:
    predict = "predict bad good.csv --text text"
    train = "train good.csv --model bad --out new"
    entries: dict[str, tuple[str, str, Made]] = {
        "pickled": (predict, "holds pickled weights, which can run code when loaded; convert them", checkpoint(pickled)),
        "pickled, to train": (train, "holds pickled weights, which can run code", checkpoint(pickled)),
        "no weights": (predict, "has no .safetensors weights", checkpoint(drop("model.safetensors"))),
        "no config": (predict, "has no config.json", checkpoint(drop("config.json"))),
        "a config that is no JSON": (predict, "config.json: is not valid JSON", checkpoint(put("config.json", b"{"))),
        "a config that is a list": (predict, "its config.json cannot be used", checkpoint(put("config.json", b"[]"))),
        "a config of bytes": (predict, "config.json: is not valid JSON", checkpoint(put("config.json", b"\xff\xfe"))),
        "an unknown architecture": (predict, "config.json cannot be used", checkpoint(model_type="nothing")),
        "no architecture": (predict, "config.json cannot be used", checkpoint(model_type=None)),
        "code of its own": (predict, "contains custom code which must be executed", checkpoint(put("evil.py", b"import os; os.system('touch hacked')\n"), model_type="evil", auto_map={"AutoConfig": "evil.Evil", "AutoModelForSequenceClassification": "evil.Evil"})),
        "layers below 0": (predict, "its weights have bert.encoder.layer.0.attention.output.LayerNorm.bias,", checkpoint(num_hidden_layers=-1)),
        "a width in words": (predict, "Field 'hidden_size' expected int", checkpoint(hidden_size="wide")),
        "a width that is another": (predict, "some are of another size than its config.json tells", checkpoint(hidden_size=32)),
        "a width of 10^9": (predict, "some are of another size than its config.json tells", checkpoint(hidden_size=10**9, num_attention_heads=1)),
        "a width of nothing": (predict, "its weights cannot be loaded", checkpoint(hidden_size=0)),
        "heads that do not divide": (predict, "its weights cannot be loaded", checkpoint(num_attention_heads=3)),
        "more words than weights": (predict, "some are of another size than its config.json tells", checkpoint(vocab_size=5)),
        "an activation that is none": (predict, "its weights cannot be loaded ('boom')", checkpoint(hidden_act="boom")),
        "a single output": (predict, "has a single-logit head", checkpoint(id2label={"0": "x"}, label2id={"x": 0})),
        "many labels at once": (predict, "is a multi-label classifier", checkpoint(problem_type="multi_label_classification")),
        "an encoder alone": (predict, "not a trained classifier", checkpoint(architectures=["BertModel"])),
        "architectures that are a number": (predict, "holds none named, not a trained classifier: train it with `calmix trai", checkpoint(architectures=5)),
        "labels that are a list": (predict, "its config.json cannot be used", checkpoint(id2label=["x", "y", "z"])),
        "weights cut short": (predict, "its weights cannot be loaded", checkpoint(cut("model.safetensors"))),
        "weights of nothing": (predict, "its weights cannot be loaded", checkpoint(put("model.safetensors", b""))),
        "weights of noise": (predict, "its weights cannot be loaded", checkpoint(put("model.safetensors", bytes(range(256)) * 9))),
        "a header that is huge": (predict, "its weights cannot be loaded", checkpoint(put("model.safetensors", struct.pack("<Q", 2**62) + b"{}"))),
        "weights of another kind": (predict, "its weights cannot be loaded", checkpoint(weights(dtype="F99"))),
        "weights that overlap": (predict, "its weights cannot be loaded", checkpoint(weights(data_offsets=[0, 192]))),
        "weights of another shape": (predict, "its weights cannot be loaded", checkpoint(weights(shape=[3, 99]))),
        "weights without a head": (predict, "its weights lack bert.embeddings.LayerNorm.bias, so it was never train", checkpoint(put("model.safetensors", struct.pack("<Q", 2) + b"{}"))),
        "no tokenizer": (predict, "has no tokenizer", checkpoint(drop("tokenizer.json", "tokenizer_config.json"))),
        "a tokenizer that is no JSON": (predict, "its tokenizer cannot be loaded", checkpoint(put("tokenizer.json", b"{"))),
        "a tokenizer cut short": (predict, "its tokenizer cannot be loaded", checkpoint(cut("tokenizer.json"))),
        "a tokenizer of nothing": (predict, "its tokenizer cannot be loaded", checkpoint(put("tokenizer.json", b"{}"))),
        "a tokenizer that is a list": (predict, "its tokenizer cannot be loaded", checkpoint(put("tokenizer.json", b"[1]"))),
        "a tokenizer of noise": (predict, "its tokenizer cannot be loaded", checkpoint(put("tokenizer.json", b"\xff\xfe\0"))),
        "settings of a tokenizer that are no JSON": (predict, "its tokenizer cannot be loaded", checkpoint(put("tokenizer_config.json", b"{"))),
        "a recalibrator that is no JSON": (predict, "calmix.json: is damaged", checkpoint(put("calmix.json", b"{"))),
        "a recalibrator that is a list": (predict, "calmix.json: is damaged", checkpoint(put("calmix.json", b"[]"))),
        "a recalibrator of no kind": (predict, "calmix.json: is damaged", checkpoint(put("calmix.json", b'{"recalibrator": {"kind": "magic"}}'))),
        "a recalibrator of words": (predict, "calmix.json: is damaged", checkpoint(put("calmix.json", b'{"recalibrator": {"kind": "vector", "scale": "x", "bias": []}}'))),
        "a threshold of nothing": (predict, "calmix.json: is damaged", checkpoint(put("calmix.json", b'{"threshold": {}}'))),
        "an ensemble that leads out": (predict, "its members are folders inside it", checkpoint(put("ensemble.json", b'{"members": ["../../etc"]}'))),
    }  # fmt: skip
    good = {"good.csv": rows("text,label", *many())}
    found = {
        f"checkpoint: {name}": Bad(command, says, {**good, "bad": made})
        for name, (command, says, made) in entries.items()
    }
    found |= {
        "checkpoint: a file": Bad("train good.csv --model good.csv --out new", "good.csv: is a file; a model is a folder", good),
        "checkpoint: not there": Bad("train good.csv --model ./no --out new", "./no: no such folder", good),
        "checkpoint: a name of nobody": Bad("train good.csv --model no/body --out new", "no/body: no such folder, nor was a model of that name fetched before", good),
        "checkpoint: a folder mistyped": Bad("train good.csv --model ./modle --out new", "./modle: no such folder; did you mean './model'?", {**good, "model": checkpoint()}),
        "checkpoint: a folder mistyped, without a dot": Bad("train good.csv --model modle --out new", "(HF_HUB_OFFLINE is set); did you mean 'model'?", {**good, "model": checkpoint()}),
        "checkpoint: a run mistyped": Bad("predict runs/frist good.csv", "did you mean 'runs/first'?", {**good, "runs": folder, "runs/first": run_of()}),
        "checkpoint: a folder mistyped, with a slash": Bad("evaluate modle/ good.csv", "modle/: no such folder; did you mean 'model'?", {**good, "model": checkpoint()}),
        "checkpoint: a name the hub could not know": Bad("predict a/b/c good.csv", "a/b/c: no such folder\n", good),
        "checkpoint: an empty folder": Bad("train good.csv --model bad --out new", "has no config.json", {**good, "bad": folder}),
        "checkpoint: an address": Bad("train good.csv --model https://huggingface.co/org/name --out new", "is an address; give a folder, or the name of a model on the hub, as in org/name", good),
        "checkpoint: a link to nowhere": Bad("train good.csv --model ./bad --out new", "./bad: no such folder", {**good, "bad": link("no")}),
    }  # fmt: skip
    return found


def _images() -> dict[str, Bad]:
    command = "train images --model MODEL --out new"
    cat = "images/cat/a.png"
    classes: dict[str, Made] = {
        "images": folder,
        "images/cat": folder,
        "images/dog": folder,
        "images/dog/b.png": png(4, 4),
    }
    names, counts = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
    two = {"images": folder, f"images/{counts}": idx(0x801, 2, body=b"\0\1")}
    files: dict[str, tuple[str, Mapping[str, Made]]] = {
        "of no bytes": ("the image is empty (zero bytes)", {**classes, cat: b""}),
        "that are text": ("this is no PNG, JPEG, BMP, WebP or GIF image", {**classes, cat: b"hello"}),
        "a bomb of 10^10 pixels": ("too large; scale the image down", {**classes, cat: png(100_000, 100_000)}),
        "without pixels": ("this is no PNG, JPEG, BMP, WebP or GIF image, whatever its name says", {**classes, cat: png(0, 0)}),
        "a header cut short": ("the header of the image is damaged", {**classes, cat: png(4, 4, cut_at=20)}),
        "a link that leads out": ("is a link that leads out", {**classes, cat: link("../../../secret"), "../secret": png(4, 4)}),
        "a link to a folder": ("links to folders are not followed", {**classes, "images/cat/x": link("../dog")}),
        "a class without any": ("there are no images in this folder", classes),
        "beside the classes": ("is in no folder of a class", {**classes, cat: png(4, 4), "images/c.png": png(4, 4)}),
        "of an IDX file cut short": ("where its header tells of", {**two, f"images/{names}": idx(0x803, 2, 4, 4, body=b"\0" * 9)}),
        "of an IDX file of another kind": ("this is not an IDX file of bytes", {**two, f"images/{names}": idx(0xD03, 2, 4, 4)}),
        "of an IDX file of 2^96 bytes": (f"{names}: ", {**two, f"images/{names}": idx(0x803, 2**32 - 1, 2**32 - 1, 2**32 - 1)}),
        "of an IDX file of none, each of 2^64 pixels": ("there are no images in it", {**two, f"images/{names}": idx(0x803, 0, 2**32 - 1, 2**32 - 1)}),
        "of an IDX file without labels": ("the file of the labels", {"images": folder, f"images/{names}": idx(0x803, 2, 1, 1, body=b"ab")}),
        "fewer than labels": ("1 images, but 2 labels", {**two, f"images/{names}": idx(0x803, 1, 1, 1, body=b"a")}),
    }  # fmt: skip
    found = {f"images: {name}": Bad(command, says, made) for name, (says, made) in files.items()}
    content = {"i.parquet": parquet(image=[{"bytes": None, "path": "/etc/passwd"}] * 4, label=[0, 1, 0, 1])}
    found |= {
        "images: to predict, not there": Bad("predict RUN nowhere.png", "nowhere.png: no such file", {}),
        "images: to predict, one not there": Bad("predict RUN a.png b.png", "b.png: no such file", {"a.png": png(4, 4)}),
        "images: to predict, one a text": Bad("predict RUN a.png b.png", "b.png: this is no PNG", {"a.png": png(4, 4), "b.png": b"x"}),
        "images: to predict with a model of texts": Bad("predict RUN a.png", "holds image data, but this model reads", {"a.png": png(4, 4)}),
        "images: to predict, and a column": Bad("predict RUN a.png --text a", "leave out --text", {"a.png": png(4, 4)}),
    }  # fmt: skip
    found["images: paths in a table"] = Bad(
        "train i.parquet --model MODEL --out new", "i.parquet: no column looks like the text", content
    )
    return found


def _vectors() -> dict[str, Bad]:
    good = {"good.csv": rows("text,label", *many())}
    entries: dict[str, tuple[str, str, bytes]] = {
        "of nothing": ("v.txt", "holds no word vectors", b""),
        "of no words we have": ("v.txt", "has a vector for no word of the training set", b"zebra 0.1 0.2\n"),
        "of uneven length": ("v.txt", "line 2 has 1 numbers, the first 2", b"text 0.1 0.2\nnumber 0.1\n"),
        "of words": ("v.txt", "line 1 holds something that is not a number", b"text a b\n"),
        "that are not finite": ("v.txt", "line 1 holds a number that is not finite", b"text nan 0.2\n"),
        "that are a program": ("v.txt", "holds no word vectors", b"\x7fELF\0\0\0 \0\1\n"),
        "of one endless line": ("v.txt", "line 1 is longer than", b"0.1 " * 40_000),
        "in a broken zip": ("v.zip", "cannot be unpacked", b"PK\x03\x04 not really"),
        "in a zip of several": ("v.zip", "holds several files: name one", zipped("a.txt", "b.txt")),
        "in an empty zip": ("v.zip", "v.zip: holds no file", zipped()),
        "in a gzip cut short": ("v.txt.gz", "the file is cut short", gzip.compress(os.urandom(5000))[:-10]),
    }
    found = {}
    for name, (file, says, content) in entries.items():
        command = f"train good.csv --model sentence-cnn --vectors {file} --out new"
        found[f"vectors: {name}"] = Bad(command, says, {**good, file: content})
    found |= {
        "vectors: not there": Bad("train good.csv --model sentence-cnn --vectors no.txt --out new", "no.txt: no such file", good),
        "vectors: for another model": Bad("train good.csv --model MODEL --vectors good.csv --out new", "word vectors are for sentence-cnn", good),
        "vectors: a file the zip has not": Bad("train good.csv --model sentence-cnn --vectors v.zip/c.txt --out new", "has no file 'c.txt'", {**good, "v.zip": zipped("a.txt")}),
    }  # fmt: skip
    return found


def _predictions() -> dict[str, Bad]:
    files: dict[str, tuple[str, bytes, str]] = {
        "no label": ("csv", rows("p_a,p_b", "0.1,0.9"), "has no column 'label'"),
        "no probabilities": ("csv", rows("label,score", "a,0.9"), "needs columns p_NAME"),
        "above 1": ("csv", rows("label,p_a,p_b", "a,1.9,-0.9"), "probs[0] holds -0.9, a negative number"),
        "that sum to 1.8": ("csv", rows("label,p_a,p_b", "a,0.9,0.9"), "probs[0] sums to 1.8, not 1"),
        "NaN": ("csv", rows("label,p_a,p_b", "a,nan,0.9"), "probs[0] holds NaN"),
        "infinite": ("csv", rows("label,p_a,p_b", "a,inf,0"), "probs[0] sums to inf, not 1"),
        "words": ("csv", rows("label,p_a,p_b", "a,many,few"), "holds something that is not a number"),
        "decimal commas": (
            "csv",
            rows("label;p_a;p_b", "a;0,1;0,9"),
            "is not a number, '0,1' at row 2 (the header is row 1); write a point in the place of the comma",
        ),
        "nothing": ("csv", rows("label,p_a,p_b", "a,,"), "column 'p_a' holds something that is not a number"),
        "a label of nobody": ("csv", rows("label,p_a,p_b", "c,0.1,0.9"), "row 2 (the header is row 1): label 'c'"),
        "one class": ("csv", rows("label,p_a", "a,1"), "probs has shape"),
        "lists of words": ("jsonl", rows('{"label": 0, "probs": ["a", "b"]}'), "must hold a list of numbers"),
        "empty lists": ("jsonl", rows('{"label": 0, "probs": []}'), "must hold a list of numbers"),
        "no lists": ("jsonl", rows('{"label": 0, "probs": 5}'), "must hold a list of numbers"),
        "a label behind the list": ("jsonl", rows('{"label": 5, "probs": [0.5, 0.5]}'), "label '5' is not among"),
        "logits that are NaN": (
            "jsonl",
            rows('{"label": 0, "logits": [NaN, 1]}'),
            "logits[0] holds NaN, +inf or nothing but -inf",
        ),
        "null": ("jsonl", rows('{"label": 0, "logits": null}'), "must hold a list of numbers"),
        "a list of lists": ("jsonl", rows('{"label": 0, "probs": [[0.5], [0.5]]}'), "must hold a list of numbers"),
    }
    found = {}
    for name, (ending, content, says) in files.items():
        file = f"p.{ending}"
        found[f"predictions: {name}"] = Bad(f"evaluate --predictions {file} --out new", says, {file: content})
    return found


def _decisions() -> dict[str, Bad]:
    table = rows("id,text,label", *(f"r{i},{line}" for i, line in enumerate(many(6))))
    files: dict[str, tuple[str, str]] = {
        "no id": ("decision\ndrop\n", "has no column 'id'"),
        "no decision": ("id\nr1\n", "has no column 'decision'"),
        "an id of nobody": ("id,decision\nr99,drop\n", "the id 'r99' at row 2"),
        "something else": ("id,decision\nr1,burn\n", "the decision 'burn' at row 2"),
        "another state of the data": ("id,label,decision\nr1,y,drop\n", "these decisions are about another state"),
        "a label of nobody": ("id,decision,new_label\nr1,relabel,maybe\n", "the new label 'maybe' at row 2"),
        "no label": ("id,decision,new_label\nr1,relabel,\n", "the new label '' at row 2"),
        "one row twice": ("id,decision\nr1,drop\nr1,keep\n", "was decided differently before"),
        "all dropped": ("id,decision\n" + "".join(f"r{i},drop\n" for i in range(6)), "drops every row of table.csv"),
        "nothing": ("id,decision\n", "there are no rows"),
        "a row too long": ("id,decision\nr1,drop,now\n", "line 2 has 3 fields"),
    }
    command = "map table.csv --apply d.csv --out clean.csv"
    found = {
        f"decisions: {name}": Bad(command, says, {"table.csv": table, "d.csv": content.encode()})
        for name, (content, says) in files.items()
    }
    same = {"table.csv": table, "d.csv": b"id,decision\nr1,drop\n"}
    found |= {
        "decisions: onto the table": Bad("map table.csv --apply d.csv --out table.csv", "is one of the tables", same),
        "decisions: into no table": Bad(
            "map table.csv --apply d.csv --out clean.txt", "the file name does not say what the file is", same
        ),
        "decisions: columns named for the map alone": Bad(
            "map odd.csv --apply d.csv --out clean.csv",
            "if the map was made with --text, --label or --id, give the same here",
            {**same, "odd.csv": rows("key,words,kind", "r1,one,x", "r2,two,y")},
        ),
        "decisions: not there": Bad("map table.csv --apply no.csv --out clean.csv", "no.csv: no such file", same),
    }
    return found


def _runs() -> dict[str, Bad]:
    entries: dict[str, tuple[str, str, Made]] = {
        "without figures": ("report bad", "the run there is not finished", run_of({"metrics.json": None})),
        "figures that are no JSON": ("report bad", "run.toml, metrics.json or log.jsonl is damaged", run_of({"metrics.json": b"{"})),
        "figures that are a list": ("report bad", "is damaged (the figures are no table", run_of({"metrics.json": b"[]"})),
        "figures of nothing": ("report bad", "there are no figures of 'dev'", run_of({"metrics.json": b'{"splits": {"dev": {}}}'})),
        "figures of words": ("report bad", "is damaged (the figures are no table", run_of({"metrics.json": b'{"splits": 5}'})),
        "figures that lead out": ("report bad", "x.parquet: no such file", run_of({"metrics.json": b'{"splits": {"../../x": {"after": {"n": 1, "accuracy": 1, "ece": 0}}}}'})),
        "a record that is no TOML": ("report bad", "run.toml, metrics.json or log.jsonl is damaged", run_of({"run.toml": b"hash = "})),
        "a log that is no JSON": ("report bad", "run.toml, metrics.json or log.jsonl is damaged", run_of({"log.jsonl": b"{\n"})),
        "a log of words": ("report bad", "the log has a line that is no epoch", run_of({"log.jsonl": b'"x"\n'})),
        "a map that is no table": ("report bad", "datamap.parquet: not a whole Parquet file", run_of({"datamap.parquet": b"PAR1"})),
        "a map of something else": ("report bad", "these are not dynamics", run_of({"datamap.parquet": parquet(a=[1])})),
        "predictions that are gone": ("report bad", "predictions-dev.parquet", run_of({"predictions-dev.parquet": None})),
        "predictions of another": ("report bad", "predictions-dev.parquet", run_of({"predictions-dev.parquet": parquet(a=[1])})),
        "a record that was cut": ("train good.csv --model MODEL --out bad", "run.toml: is damaged", run_of({"run.toml": b"[decided", "metrics.json": None})),
        "a record of nothing": ("train good.csv --model MODEL --out bad", "holds a different run", run_of({"run.toml": b"", "metrics.json": None})),
        "a map to guide, damaged": ("train good.csv --recipe tdmixup --dynamics bad --model MODEL --out new", "datamap.parquet: not a whole Parquet file", run_of({"datamap.parquet": b"PAR1"})),
        "a map to guide, of others": ("train good.csv --recipe tdmixup --dynamics bad --model MODEL --out new", "20 of 20 samples have no recorded dynamics", run_of()),
    }  # fmt: skip
    good = {"good.csv": rows("text,label", *many())}
    found = {
        f"run: {name}": Bad(command, says, {**good, "bad": made}) for name, (command, says, made) in entries.items()
    }
    found |= {
        "run: of nobody": Bad("report bad", "holds no run of ours", {"bad": folder}),
        "run: not there": Bad("report bad", "no such folder; give the folder of a run", {}),
        "run: mistyped": Bad("report frist", "frist: no such folder; did you mean 'first'?", {"first": run_of()}),
        "run: a map mistyped": Bad("subset good.csv --label what --dynamics frist --out part.csv", "frist: no such folder; did you mean 'first'?", {**good, "first": run_of()}),
        "run: a study of nothing": Bad("report bad", "was written by another version", {"bad": folder, "bad/study.json": b"{}"}),
        "run: a study that is no JSON": Bad("report bad", "study.json: is damaged", {"bad": folder, "bad/study.json": b"{"}),
        "run: a page that is none": Bad("report bad --out page.txt", "let the name end in .html", {"bad": folder}),
        "run: a figure that is none": Bad("plot bad --what curves --out f.txt", "let the name end in .png", {"bad": folder}),
        "run: an option of another figure": Bad("plot bad --what curves --bins 5 --out f.png", "--bins is of reliability, and means nothing to curves", {"bad": run_of()}),
        "run: a figure of two": Bad("plot bad other --what datamap --out f.png", "drawn of one folder, not of 2: draw one of each", {"bad": run_of(), "other": run_of()}),
        "run: one twice": Bad("plot bad bad --what reliability --out f.png", "bad: is given twice", {"bad": run_of()}),
        "run: numbers onto the data": Bad("plot bad --what extended --out f.png --table good.csv", "is there already, and holds something else", {**good, "bad": run_of()}),
        "run: numbers onto what is read": Bad("plot bad --what extended --out f.png --table bad/log.jsonl", "is one of the tables that are read", {"bad": run_of()}),
        "run: a file twice": Bad("evaluate RUN good.csv ./good.csv --out new", "good.csv: is given twice", good),
        "run: a student called a model": Bad("distil RUN good.csv --model MODEL --out new", "the model that learns is --student", good),
        "run: into somebody's folder": Bad("train good.csv --model MODEL --out full", "is not empty and holds no run of ours", {**good, "full": folder, "full/thesis.tex": b"x"}),
        "run: below a file": Bad("train good.csv --model MODEL --out good.csv/x", "cannot be written to", good),
    }  # fmt: skip
    return found


BAD_INPUTS: dict[str, Bad] = {
    **_tables(),
    **_studies(),
    **_checkpoints(),
    **_images(),
    **_vectors(),
    **_predictions(),
    **_decisions(),
    **_runs(),
}
