"""What all commands share: help without waiting, one line for what is wrong, and how they are stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import calmix as package
from calmix.cli.main import _terminable
from calmix.errors import InputError, TrainingError

# What is wrong, as a command line in which {name} is one of the files below. Every one of them must end in
# exit code 2 and one line, and leave the folder as it was.
BAD_FILES: dict[str, bytes] = {
    "good.csv": b"text,label\n" + b"".join(b"text %d,%s\n" % (i, (b"y", b"n")[i % 2]) for i in range(20)),
    "no_label.csv": b"text,topic\na,b\n",
    "no_text.csv": b"title,label\na,b\n",
    "empty.csv": b"",
    "header.csv": b"text,label\n",
    "ragged.csv": b"text,label\na,x\nb,y,z\n",
    "broken_utf8.csv": b"text,label\na,x\n\xff\xfe,y\n",
    "broken.jsonl": b'{"text": "a", "label": "x"}\n{"text": "b", \n',
    "empty_text.csv": b"text,label\na,x\n ,y\n",
    "nan_label.csv": b"text,label\na,x\nb,\n",
    "floats.jsonl": b'{"text": "a", "label": 0.5}\n{"text": "b", "label": 1.5}\n',
    "other_label.csv": b"text,label\na,y\nb,unheard\n",
    "one_class.csv": b"text,label\na,x\nb,x\nc,x\nd,x\n",
    "two_rows.csv": b"text,label\na,x\nb,y\n",
    "texts.csv": b"text\na\nb\n",
    "odd.xlsx": b"PK",
    "bad_p.csv": b"label,p_a,p_b\na,0.9,0.9\n",
    "nan_p.csv": b"label,p_a,p_b\na,nan,0.9\n",
    "no_p.csv": b"label,score\na,0.9\n",
    "recipe.py": b"def broken(:\n",
    "full/thesis.tex": b"x",
    "pickled/config.json": b'{"model_type": "bert"}',
    "pickled/pytorch_model.bin": b"\x80",
    "no_weights/config.json": b'{"model_type": "bert"}',
    "bad_config/config.json": b"{",
    "unfinished/run.toml": b"hash = 'x'",
}

BAD_COMMANDS = [
    "train missing.csv",
    "train no_label.csv",
    "train no_text.csv",
    "train empty.csv",
    "train header.csv",
    "train ragged.csv",
    "train broken_utf8.csv",
    "train broken.jsonl",
    "train empty_text.csv",
    "train nan_label.csv",
    "train floats.jsonl",
    "train one_class.csv",
    "train two_rows.csv",
    "train full",
    "train odd.xlsx",
    "train good.csv --text nowhere",
    "train good.csv --label nowhere",
    "train good.csv --dev other_label.csv",
    "train good.csv --test other_label.csv",
    "train good.csv --dev header.csv",
    "train good.csv --ood x=empty.csv",
    "train good.csv --ood good.csv",
    "train good.csv --ood =good.csv",
    "train good.csv --ood ../x=good.csv",
    "train good.csv --ood x=good.csv --ood x=good.csv",
    "train good.csv --out good.csv",
    "train good.csv --out good.csv/below",
    "train good.csv --out full",
    "train good.csv --out /proc/no",
    "train good.csv --out unfinished",
    "train good.csv --recipe mixdown",
    "train good.csv --recipe recipe.py:broken",
    "train good.csv --recipe missing.py:method",
    "train good.csv --recipe input-mixup --set alpha=many",
    "train good.csv --recipe input-mixup --set alpha=-1",
    "train good.csv --recipe input-mixup --set beta=1",
    "train good.csv --set alpha",
    "train good.csv --class-weights heavy",
    "train good.csv --class-weights y=heavy",
    "train good.csv --class-weights z=1",
    "train good.csv --class-weights y=0,n=0",
    "train good.csv --lr -1",
    "train good.csv --lr fast",
    "train good.csv --epochs -1",
    "train good.csv --batch-size 0",
    "train good.csv --accumulate 0",
    "train good.csv --max-length 1",
    "train good.csv --dev-fraction 1",
    "train good.csv --guarantee 1",
    "train good.csv --select f1",
    "train good.csv --schedule cosine",
    "train good.csv --track paper",
    "train good.csv --push-to-hub a/b/c",
    "train good.csv --model nowhere/at-all",
    "train good.csv --model pickled",
    "train good.csv --model no_weights",
    "train good.csv --model bad_config",
    "train good.csv --model full",
    "train good.csv --model good.csv",
    "train good.csv --nonsense",
    "train",
    "predict RUN",
    "predict RUN missing.csv",
    "predict RUN no_text.csv --text nowhere",
    "predict RUN texts.csv --out full",
    "predict RUN texts.csv --out x.txt",
    "predict RUN texts.csv --out good.csv/x.csv",
    "predict full texts.csv",
    "predict unfinished texts.csv",
    "predict PLAIN texts.csv --abstain",
    "predict CHOICES texts.csv",
    "predict ENCODER texts.csv",
    "evaluate",
    "evaluate RUN",
    "evaluate RUN good.csv --predictions bad_p.csv",
    "evaluate RUN good.csv",
    "evaluate RUN TEST --group nowhere",
    "evaluate --predictions bad_p.csv",
    "evaluate --predictions nan_p.csv",
    "evaluate --predictions no_p.csv",
    "evaluate --predictions missing.csv",
    "calibrate RUN TEST --out full",
    "calibrate RUN TEST --out good.csv",
    "calibrate RUN good.csv --out new",
    "calibrate RUN TEST --out new --method platt",
    "calibrate RUN TEST --out new --guarantee 2",
    "calibrate RUN TEST",
    "calibrate CHOICES TEST --out new",
    "recipes mixdown",
    "fly",
]


@pytest.fixture(scope="session")
def encoder_only(checkpoint: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint without a classifier's head."""
    import tiny
    from transformers import AutoModel

    folder = tmp_path_factory.mktemp("encoder") / "bert"
    AutoModel.from_config(tiny.config("bert")).save_pretrained(folder)
    tiny.tokenizer("bert").save_pretrained(folder)
    return folder


@pytest.mark.parametrize("command", BAD_COMMANDS)
def test_what_is_wrong_ends_in_one_line_and_changes_nothing(
    calmix: Any, place: Path, tree: Any, checkpoint: Any, trained: Path, files: Any, encoder_only: Path, command: str
) -> None:
    for name, content in BAD_FILES.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(content)
    known = {
        "RUN": trained,
        "PLAIN": checkpoint("bert"),
        "CHOICES": checkpoint("bert", choices=True),
        "ENCODER": encoder_only,
        "TEST": files["test"],
    }
    words = [known.get(word, word) for word in command.split(" ")]
    if words[0] == "train" and "--model" not in words and len(words) > 1:
        words += ["--model", checkpoint("bert")]
    before = tree(place), tree(trained)
    ended = calmix(*words)
    assert ended.code == 2
    assert ended.out == ""
    assert ended.err.startswith("calmix: ")
    assert ended.err.endswith("\n")
    assert ended.err.count("\n") == 1
    assert "Traceback" not in ended.err
    assert (tree(place), tree(trained)) == before


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("train ragged.csv", ["ragged.csv", "3"]),
        ("train broken.jsonl", ["broken.jsonl", "2"]),
        ("train broken_utf8.csv", ["broken_utf8.csv"]),
        ("train empty_text.csv", ["empty_text.csv", "row 3"]),
        ("train good.csv --dev other_label.csv", ["other_label.csv", "unheard"]),
        ("train good.csv --recipe erm --set alpha=1", ["erm", "alpha"]),
        ("evaluate --predictions bad_p.csv", ["bad_p.csv", "sums to 1.8"]),
        ("evaluate --predictions nan_p.csv", ["nan_p.csv", "NaN"]),
    ],
)
def test_the_line_names_the_file_and_the_place(
    calmix: Any, place: Path, checkpoint: Any, command: str, names: list[str]
) -> None:
    for name, content in BAD_FILES.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(content)
    words = command.split(" ")
    ended = calmix(*words, *(["--model", checkpoint("bert")] if words[0] == "train" else []))
    for name in names:
        assert name in ended.err


def test_help_is_there_without_torch_and_without_waiting() -> None:
    for words in (["--help"], ["train", "--help"], ["predict", "-h"]):
        code = (
            "import sys, time; began = time.perf_counter()\n"
            "from calmix.cli import main\n"
            f"try:\n    main({words!r})\n"
            "except SystemExit as stop:\n    assert stop.code == 0\n"
            "assert not {'torch', 'transformers', 'numpy', 'pyarrow'} & set(sys.modules)\n"
        )
        began = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "Usage" in done.stdout
        assert time.perf_counter() - began < 10


def test_the_version_is_told(calmix: Any) -> None:
    assert calmix("--version").out == f"calmix {package.__version__}\n"


def test_no_command_shows_the_help(calmix: Any) -> None:
    assert "Usage" in calmix().out + calmix().err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("a\nb  c"), 2, "calmix: a b c\n"),
        (InputError("\x1b[31mred\x07"), 2, "calmix: \\x1b[31mred\\x07\n"),
        (TrainingError("diverged"), 1, "calmix: diverged\n"),
        (OSError(28, "No space left on device", "/some/file"), 1, "calmix: /some/file: No space left on device\n"),
        (KeyboardInterrupt("stopped at step 3"), 130, "calmix: stopped at step 3\n"),
        (KeyboardInterrupt(), 130, "calmix: stopped\n"),
    ],
)
def test_errors_become_lines_and_codes(
    calmix: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, line: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("calmix.data.reading.check_there", fail)
    ended = calmix("predict", "model", "texts.csv")
    assert (ended.code, ended.out, ended.err) == (code, "", line)


def test_a_bug_is_not_hidden(calmix: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("calmix.data.reading.check_there", fail)
    with pytest.raises(ZeroDivisionError):
        calmix("predict", "model", "texts.csv")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_save_and_say_how_to_go_on(
    calmix: Any, place: Path, files: Any, checkpoint: Any, number: signal.Signals
) -> None:
    # The signal comes in the middle of the fourth step, as it would from outside.
    (place / "mine.py").write_text(
        "import os, signal\n"
        "from calmix.recipes import Recipe, clean\n"
        "calls = []\n"
        "def mine() -> Recipe:\n"
        "    term = clean()\n"
        "    def loss(step):\n"
        "        calls.append(1)\n"
        f"        if len(calls) == 4 and not os.path.exists('go'):\n"
        f"            os.kill(os.getpid(), {int(number)})\n"
        "        return term(step)\n"
        "    return Recipe(loss)\n"
    )
    command = [
        "train",
        files["train"],
        "--dev",
        files["dev"],
        "--model",
        checkpoint("bert"),
        "--batch-size",
        8,
        "--epochs",
        3,
    ]
    command += ["--out", "run", "--recipe", "mine.py:mine"]
    handler = signal.getsignal(signal.SIGTERM)
    ended = calmix(*command)
    assert ended.code == 130
    assert ended.err.splitlines()[-1] == ("calmix: stopped at step 4 of 12, saved; the same command goes on from there")
    assert [p.name for p in (place / "run" / "checkpoints").iterdir()] == ["step-00000004"]
    assert signal.getsignal(signal.SIGTERM) == handler
    (place / "go").write_text("")
    ended = calmix(*command, "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["epochs"][-1]["step"] == 12


def test_an_error_in_a_recipe_of_ones_own_is_one_line(calmix: Any, files: Any, checkpoint: Any, place: Path) -> None:
    text = "from calmix.recipes import Recipe\n\n\ndef loss(step):\n    return step.nothing\n\n\n"
    (place / "mine.py").write_text(text + "def mine():\n    return Recipe(loss=loss)\n")
    words = ("train", files["train"], "--model", checkpoint("bert"), "--recipe", "mine.py:mine", "--out", "run")
    ended = calmix(*words)
    assert ended.code == 2
    last = ended.err.splitlines()[-1]
    assert last.startswith("calmix: ")
    assert last.endswith("mine.py, line 5, in your recipe: AttributeError: 'Step' object has no attribute 'nothing'")
    assert not (place / "run").exists()


def test_several_processes_say_it_once(calmix: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    ended = calmix("recipes", "mixdown")
    assert (ended.code, ended.err) == (2, "")


def test_a_reader_that_leaves_is_no_error() -> None:
    code = "from calmix.cli import main; main(['recipes'])"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert done.stderr == ""


def test_a_word_that_is_no_choice_is_met_with_those_there_are(calmix: Any) -> None:
    ended = calmix("train", "good.csv", "--schedule", "cosine")
    assert (ended.code, ended.out) == (2, "")
    assert "'--schedule': 'cosine' is not one of 'linear', 'constant', 'steps' (see" in ended.err


def test_a_background_job_that_ignores_ctrl_c_can_be_terminated() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), _terminable():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, before)


def test_without_a_command_the_help_says_it_all(calmix: Any) -> None:
    ended = calmix()
    assert ended.code == 2
    assert "Usage: " in ended.out
    assert ended.err == ""
