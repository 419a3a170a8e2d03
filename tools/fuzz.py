"""Look for inputs that a reader of ours neither reads nor refuses: `python tools/fuzz.py --seconds 60 [TARGET ...]`.

Coverage-guided, with atheris: each target has a process of its own, which begins with the inputs below and goes on
with what reaches new code. A reader may return or raise `InputError`; anything else is a finding, whose input is kept
in `--out` and printed. Exit code 1 if there was one.
"""

import argparse
import gzip
import io
import lzma
import os
import struct
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path

_MEMORY = "/dev/shm"
_COUNT = "stat::number_of_executed_units"

TABLE = b'id,text,label\n1,"a ""quoted"" text",x\n2,b,y\n3,c,x\n4,d,y\n'
LINES = (
    b'{"id": 1, "text": "a", "label": "x", "votes": {"x": 1}}\n{"id": 2, "text": "b", "label": "y", "votes": null}\n'
)
LISTS = [b'{"label": 0, "probs": [0.5, 0.5]}\n', b'{"label": 1, "logits": [1, -2]}\n']
CHOICES = b'[{"text": "q", "choices": ["a", "b"], "label": 1}, {"text": "r", "choices": ["c", "d", "e"], "label": 0}]'
STUDY = b"""title = "t"
models = ["m"]
seeds = [1, 2]
tasks = ["t"]
[task.t]
train = { file = "train", columns = { text = "text" }, labels = { y = ["yes"] } }
test = "test"
ood.x = "other"
rows = 5
[[training]]
name = "a"
epochs = 1
[[method]]
recipe = "input-mixup"
options = { alpha = 0.4 }
vary = { alpha = [0.1] }
[[method]]
name = "e"
ensemble = { of = "input-mixup alpha=0.1", members = 2 }
"""
PREDICTIONS = b"id,label,p_a,p_b\n1,a,0.9,0.1\n2,b,0.2,0.8\n"
DECISIONS = b"id,label,decision,new_label\n1,x,drop,\n2,y,relabel,x\n3,,keep,\n"
VECTORS = b"2 3\nthe 0.1 0.2 0.3\nof -1 2e-3 4\n"
BESIDE = (
    b'{"recalibrator": {"kind": "vector", "scale": [1, 2], "bias": [0, 1]}, "threshold": {"threshold": 0.5, '
    b'"accuracy": 0.9, "error": 0.05, "coverage": 0.4}, "sets": {"kind": "lac", "quantile": 0.9, "level": 0.9}}'
)
STATE = b'{"step": 3, "sha256": {}, "facts": {"epoch": 1}}'
METRICS = b'{"splits": {"dev": {"after": {"n": 1, "accuracy": 1.0, "ece": 0.0}}}, "files": {"dev": "d.csv"}}'


def _parquet() -> bytes:
    import pyarrow as pa
    import pyarrow.parquet

    sink = io.BytesIO()
    pa.parquet.write_table(pa.table({"text": ["a", "b"], "label": ["x", "y"]}), sink)
    return sink.getvalue()


def _image(kind: str) -> bytes:
    from PIL import Image

    sink = io.BytesIO()
    Image.new("RGB", (5, 4), (1, 2, 3)).save(sink, kind)
    return sink.getvalue()


def _idx() -> bytes:
    return struct.pack(">IIII", 0x803, 2, 2, 2) + bytes(8)


def _examples(path: Path) -> None:
    from calmix.data import read_examples

    read_examples(path, labelled=None)


def _votes(path: Path) -> None:
    from calmix.data import read_examples

    read_examples(path, votes="votes", labelled=None)


def _decisions(path: Path) -> None:
    import numpy as np
    import pyarrow as pa

    from calmix.data import Examples, apply_decisions, read_decisions

    table = pa.table({"id": ["1", "2", "3"], "text": ["a", "b", "c"], "label": ["x", "y", "x"]})
    examples = Examples(table.select(["id", "text"]), np.array([0, 1, 0]), ("x", "y"), source="the data")
    apply_decisions(table, examples, read_decisions(path, examples), label="label")


def _predictions(path: Path) -> None:
    from calmix.training import read_predictions

    read_predictions(path)


def _vectors(path: Path) -> None:
    from calmix.data.vectors import read_vectors

    read_vectors(path, ["the", "of", "a"])


def _study(path: Path) -> None:
    from calmix.study.asking import read_study

    read_study(path)


def _task(path: Path) -> None:
    from calmix.data.tasks import parse_task

    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return
    parse_task("t", values, "t")


def _decoded(path: Path) -> None:
    from calmix.data.decoding import check_image, decode_image

    data = path.read_bytes()
    check_image(data, "image")
    decode_image(data, "image")


def _indexed(path: Path) -> None:
    from calmix.data.idx import read_idx

    path.with_name("x-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, 2) + b"\0\1")
    read_idx(path, labelled=None)


def _beside(path: Path) -> None:
    from calmix.models import read_beside

    read_beside(path.parent)


def _state(path: Path) -> None:
    from calmix.training.state import latest

    folder = path.parent / "checkpoints" / "step-00000003"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state.json").write_bytes(path.read_bytes())
    latest(folder.parent)


def _record(path: Path) -> None:
    from calmix.training.folder import find_run

    find_run(path.parent, {"lr": 0.1})


def _run(path: Path) -> None:
    from calmix.report.runs import read_run

    path.with_name("run.toml").write_text("[config]\nbins = 15\n")
    read_run(path.parent)


def _dynamics(path: Path) -> None:
    from calmix.dynamics import Dynamics

    Dynamics.load(path)


Target = tuple[str, Callable[[Path], None], Callable[[], list[bytes]]]
TARGETS: dict[str, Target] = {
    "csv": ("t.csv", _examples, lambda: [TABLE, PREDICTIONS, b"text\n"]),
    "tsv": ("t.tsv", _examples, lambda: [TABLE.replace(b",", b"\t")]),
    "jsonl": ("t.jsonl", _examples, lambda: [LINES]),
    "json": ("t.json", _examples, lambda: [CHOICES]),
    "votes": ("t.jsonl", _votes, lambda: [LINES]),
    "parquet": ("t.parquet", _examples, lambda: [_parquet()]),
    "gzip": ("t.csv.gz", _examples, lambda: [gzip.compress(TABLE)]),
    "xz": ("t.csv.xz", _examples, lambda: [lzma.compress(TABLE)]),
    "zstd": ("t.jsonl.zst", _examples, lambda: [_zstd()]),
    "decisions": ("d.csv", _decisions, lambda: [DECISIONS]),
    "predictions": ("p.csv", _predictions, lambda: [PREDICTIONS]),
    "lists": ("p.jsonl", _predictions, lambda: LISTS),
    "vectors": ("v.txt", _vectors, lambda: [VECTORS]),
    "study": ("s.toml", _study, lambda: [STUDY]),
    "task": ("t.toml", _task, lambda: [STUDY[STUDY.index(b"train =") : STUDY.index(b"[[training")]]),
    "image": ("i.png", _decoded, lambda: [_image(kind) for kind in ("PNG", "JPEG", "BMP", "GIF", "WEBP")]),
    "idx": ("x-images-idx3-ubyte", _indexed, lambda: [_idx()]),
    "beside": ("calmix.json", _beside, lambda: [BESIDE]),
    "state": ("state.json", _state, lambda: [STATE]),
    "record": ("run.toml", _record, lambda: [b'hash = "x"\n[config]\nlr = 0.2\n[decided]\nthreads = 1\n']),
    "run": ("metrics.json", _run, lambda: [METRICS]),
    "dynamics": ("d.parquet", _dynamics, lambda: [_parquet()]),
}  # fmt: skip
"""Name → the file a reader finds its input in, the reader, and inputs to begin with."""


def _zstd() -> bytes:
    import pyarrow as pa

    packed: bytes = pa.compress(LINES, codec="zstd", asbytes=True)
    return packed


def attempt(name: str, data: bytes, folder: Path) -> BaseException | None:
    """Return what a reader raised that it should not have, given these bytes."""
    from calmix.errors import CalmixWarning, InputError

    file, read, _ = TARGETS[name]
    (folder / file).write_bytes(data)
    try:
        read(folder / file)
    except (InputError, CalmixWarning):
        return None
    except Exception as error:
        return error
    return None


def _fuzz(name: str, seconds: int, kept: Path, scratch: Path) -> None:
    """Fuzz one target in this process, which ends with it."""
    import atheris

    with atheris.instrument_imports(include=["calmix", "csv", "json", "tomllib"]):
        import calmix.data
        import calmix.dynamics
        import calmix.models
        import calmix.report.runs
        import calmix.study.asking
        import calmix.training  # noqa: F401

    corpus = scratch / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(TARGETS[name][2]()):
        (corpus / str(number)).write_bytes(seed)
    place = scratch / "place"
    place.mkdir()

    def once(data: bytes) -> None:
        error = attempt(name, data, place)
        if error is not None:
            raise error

    # Longer inputs are slower, and find nothing that short ones do not.
    limits = [f"-max_total_time={seconds}", "-timeout=30", "-rss_limit_mb=4096", "-max_len=4096", "-verbosity=0"]
    limits.append("-print_final_stats=1")
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={kept}/{name}-", str(corpus)], once)
    atheris.Fuzz()


def main(arguments: list[str] | None = None) -> int:
    """Fuzz the targets one after the other; return 1 if any of them has a finding."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--out", type=Path, default=Path("fuzz-findings"), help="where inputs of findings go")
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)  # of a process that fuzzes one target
    options = parser.parse_args(arguments)
    names = options.targets or list(TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"no such target: {unknown[0]}")
    options.out.mkdir(parents=True, exist_ok=True)
    if options.scratch is not None:
        _fuzz(names[0], options.seconds, options.out.absolute(), options.scratch)
        return 0
    findings = 0
    for name in names:
        command = [sys.executable, __file__, name, "--seconds", str(options.seconds), "--out", str(options.out)]
        with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_MEMORY if os.path.isdir(_MEMORY) else None) as scratch:
            command += ["--scratch", scratch]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        tail = done.stderr.strip().splitlines()
        counted = next((line.split()[-1] for line in tail if line.startswith(_COUNT)), "an unknown number of")
        print(f"{name}: {counted} inputs", flush=True)
        if done.returncode != 0:
            findings += 1
            print("\n".join(tail[-40:]), flush=True)
    if not any(options.out.iterdir()):
        options.out.rmdir()
    print(f"{findings} of {len(names)} targets have a finding")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
