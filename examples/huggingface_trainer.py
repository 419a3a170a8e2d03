"""A fitted head and a recipe's loss in the Hugging Face Trainer.

    python examples/huggingface_trainer.py --epochs 1

`fit_head` comes before the Trainer, which else would not know of the layer that is added.
`compute_loss_func` would see the outputs of a finished forward, too late to mix anything inside the model:
hence the few lines of a subclass.
"""

import argparse
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

import calmix
from calmix.data import read_examples
from calmix.data.corpus import corpus_path
from calmix.models import resolve
from calmix.recipes import batch_loss, input_mixup


class MixingTrainer(Trainer):
    recipe = input_mixup(alpha=0.4)
    loss_is_scaled_for_ga = False  # a mean over the batch: the Trainer divides it by the accumulated batches

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **options: Any) -> Any:
        if return_outputs or not model.training:  # evaluation: nothing is mixed
            return super().compute_loss(model, inputs, return_outputs, **options)
        seed = int(torch.randint(2**62, ()))  # from the state that the Trainer saves and restores
        generator = torch.Generator(inputs["input_ids"].device).manual_seed(seed)
        return batch_loss(self.recipe, model, inputs, generator=generator, tokenizer=self.processing_class)


def main(arguments: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="minilm", help="a folder, a hub name, or minilm")
    parser.add_argument("--data", default=str(corpus_path("train")), help="a table with a text and a label column")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=5e-5)
    args = parser.parse_args(arguments)

    examples = read_examples(args.data)
    name = resolve(args.model)
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForSequenceClassification.from_pretrained(
        name,
        id2label=dict(enumerate(examples.label_names)),
        label2id={label: i for i, label in enumerate(examples.label_names)},
        ignore_mismatched_sizes=True,
    )
    print(calmix.fit_head(model, tokenizer, examples.column("text"), examples.labels, max_length=128))
    encoded = tokenizer(examples.column("text"), truncation=True, max_length=128)
    rows = [
        {"labels": int(label), **{key: values[i] for key, values in encoded.items()}}
        for i, label in enumerate(examples.labels)
    ]
    with tempfile.TemporaryDirectory() as folder:
        trainer = MixingTrainer(
            model=model,
            args=TrainingArguments(
                folder,
                num_train_epochs=args.epochs,
                per_device_train_batch_size=32,
                learning_rate=args.lr,
                logging_strategy="epoch",
                save_strategy="no",
                report_to="none",
            ),
            train_dataset=rows,
            processing_class=tokenizer,
            data_collator=DataCollatorWithPadding(tokenizer),
        )
        return float(trainer.train().training_loss)


if __name__ == "__main__":
    main()
