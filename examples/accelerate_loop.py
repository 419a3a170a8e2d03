"""A recipe's loss in a training loop on accelerate: any number of processes, mixed precision, accumulation.

    accelerate launch examples/accelerate_loop.py --epochs 1

Each process draws its own pairs, from a generator seeded with its number.
"""

import argparse
from collections.abc import Sequence

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from calmix.data import read_examples
from calmix.data.corpus import corpus_path
from calmix.models import resolve
from calmix.recipes import batch_loss, manifold_mixup


def main(arguments: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="minilm", help="a folder, a hub name, or minilm")
    parser.add_argument("--data", default=str(corpus_path("train")), help="a table with a text and a label column")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=5e-5)
    args = parser.parse_args(arguments)

    accelerator = Accelerator(gradient_accumulation_steps=2)
    set_seed(0)
    examples = read_examples(args.data)
    name = resolve(args.model)
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForSequenceClassification.from_pretrained(
        name,
        id2label=dict(enumerate(examples.label_names)),
        label2id={label: i for i, label in enumerate(examples.label_names)},
        ignore_mismatched_sizes=True,
    )

    def collate(rows: list[tuple[str, int]]) -> dict[str, torch.Tensor]:
        texts, labels = zip(*rows, strict=True)
        batch = tokenizer(list(texts), padding=True, truncation=True, max_length=128, return_tensors="pt")
        return {**batch, "labels": torch.tensor(labels)}

    rows = list(zip(examples.column("text"), examples.labels.tolist(), strict=True))
    loader = DataLoader(rows, batch_size=16, shuffle=True, collate_fn=collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    recipe = manifold_mixup(alpha=1.0)
    generator = torch.Generator(accelerator.device).manual_seed(accelerator.process_index)
    mean = float("nan")
    model.train()
    for epoch in range(args.epochs):
        total = torch.zeros((), device=accelerator.device)
        for batch in loader:
            with accelerator.accumulate(model):
                loss = batch_loss(recipe, model, batch, generator=generator, tokenizer=tokenizer)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                total += loss.detach()
        mean = float(accelerator.reduce(total, "mean")) / len(loader)
        accelerator.print(f"epoch {epoch + 1}: loss {mean:.3f}")
    return mean


if __name__ == "__main__":
    main()
