"""What a study costs beyond its training loops: many small runs, in one process.

    python benchmarks/study.py --runs 200

Prints the time of the study, the time inside its training loops, and what is left, as a share of the loops: loading,
tokenising, judging dev, test and out-of-domain data, and writing. All of it by the clock and by the processor's time,
which leaves out waiting for the disk and for whatever else the machine does. The model is a random BERT of two narrow
layers unless --model says otherwise.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from common import processor

if TYPE_CHECKING:
    from calmix.training.keeping import Fit


def tiny_model(folder: Path) -> Path:
    """Write a random BERT of two layers with a word tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    from calmix.data import read_table
    from calmix.data.corpus import corpus_path

    texts = read_table(corpus_path("train"))["text"].to_pylist()
    specials = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    words = sorted({word for text in texts for word in text.lower().split()})
    ids = {token: place for place, token in enumerate([*specials, *words])}
    core = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=128, **names).save_pretrained(folder)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(ids), max_position_embeddings=128, num_labels=7, **shape)
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def main() -> None:
    from calmix.study import Order, conduct, outcome, prepare
    from calmix.training.halves import Ready

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--test-rows", type=int, default=200)
    parser.add_argument("--model", default=None)
    parser.add_argument("--json")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = asked.model or str(tiny_model(folder / "model"))
        values = [round(0.01 * (1 + k), 2) for k in range(asked.runs // asked.seeds)]
        text = f'tasks = ["desk"]\nmodels = ["{model}"]\nseeds = {asked.seeds}\nkeep = "metrics"\n'
        text += f"[training]\nepochs = {asked.epochs}\n[task.desk]\ntest_rows = {asked.test_rows}\n"
        text += f'[[method]]\nrecipe = "label-smoothing"\nvary = {{ smoothing = {values} }}\n'
        (folder / "study.toml").write_text(text)
        prepared = prepare(Order(folder / "study.toml", folder / "out"))
        # What a process pays once, whatever it then does, is paid before.
        import transformers.models.bert.modeling_bert  # noqa: F401

        loops: dict[str, float] = {"wall": 0.0, "processor": 0.0}
        fit = Ready.fit

        def timed(run: Ready) -> "Fit":
            began = times()
            done = fit(run)
            for name, seconds in times().items():
                loops[name] += seconds - began[name]
            return done

        Ready.fit = timed  # type: ignore[method-assign]
        began = times()
        state = conduct(prepared)
        whole = {name: seconds - began[name] for name, seconds in times().items()}
        assert state.done == state.total, "a run failed"
        began = times()
        outcome(prepared)
        tables = times()["wall"] - began["wall"]
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "runs": state.total,
        "epochs": asked.epochs,
        "test_rows": asked.test_rows,
        "tables_seconds": round(tables, 3),
    }
    for name, seconds in whole.items():
        beyond = seconds / loops[name] - 1
        found[name] = {"seconds": round(seconds, 3), "loops": round(loops[name], 3), "beyond": round(beyond, 4)}
    print(json.dumps(found, indent=2))
    if asked.json:
        Path(asked.json).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def times() -> dict[str, float]:
    return {"wall": time.perf_counter(), "processor": time.process_time()}


if __name__ == "__main__":
    main()
