"""A fitted head and a recipe's loss in a training loop of plain PyTorch.

    python examples/bare_pytorch_loop.py --epochs 1

The two lines that are calmix are `fit_head`, before the optimiser is made, and `batch_loss`; everything else is what
such a loop has anyway.
"""

import argparse
from collections.abc import Sequence

import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import calmix
from calmix.data import read_examples
from calmix.data.corpus import corpus_path
from calmix.models import resolve
from calmix.recipes import batch_loss, cls_mixup


def main(arguments: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="minilm", help="a folder, a hub name, or minilm")
    parser.add_argument("--data", default=str(corpus_path("train")), help="a table with a text and a label column")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=5e-5)
    args = parser.parse_args(arguments)

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    examples = read_examples(args.data)
    name = resolve(args.model)
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForSequenceClassification.from_pretrained(
        name,
        id2label=dict(enumerate(examples.label_names)),
        label2id={label: i for i, label in enumerate(examples.label_names)},
        ignore_mismatched_sizes=True,
    ).to(device)
    print(calmix.fit_head(model, tokenizer, examples.column("text"), examples.labels, max_length=128))

    def collate(rows: list[tuple[str, int]]) -> dict[str, torch.Tensor]:
        texts, labels = zip(*rows, strict=True)
        batch = tokenizer(list(texts), padding=True, truncation=True, max_length=128, return_tensors="pt")
        return {**batch, "labels": torch.tensor(labels)}

    rows = list(zip(examples.column("text"), examples.labels.tolist(), strict=True))
    loader = DataLoader(rows, batch_size=32, shuffle=True, collate_fn=collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    recipe = cls_mixup(alpha=0.4)
    generator = torch.Generator(device).manual_seed(0)  # decides who is mixed with whom, and how much
    mean = float("nan")
    model.train()
    for epoch in range(args.epochs):
        total = torch.zeros((), device=device)
        for batch in loader:
            on_device = {key: value.to(device) for key, value in batch.items()}
            loss = batch_loss(recipe, model, on_device, generator=generator, tokenizer=tokenizer)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        mean = float(total) / len(loader)
        print(f"epoch {epoch + 1}: loss {mean:.3f}")
    return mean


if __name__ == "__main__":
    main()
