"""The tasks that the default is chosen and judged on, everything tokenised and on the device."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from calmix.data import Examples
from calmix.data.gathering import gather, has_inside, sampled
from calmix.data.tasks import builtin_tasks, parse_task
from calmix.mixing import fill_tokens
from calmix.models import Packed, encode, load_for_training, resolve, usable_length
from calmix.training.batches import TrainingSet, training_set

REFERENCE = 4000
SPOILT = ("mask", "replace", "shuffle")

DEVELOPMENT = ("snli", "qqp", "goemotions", "yelp", "trec", "swag", "cola", "epitome", "ag-news", "rte")
_BUILTIN = builtin_tasks()
_STARS = {"negative": ["1"], "positive": ["2"]}
_SIGNS = {"negative": ["neg"], "positive": ["pos"]}
# None of these was trained on, and no test set of theirs looked at, before the default was fixed.
CONFIRMATION: dict[str, dict[str, Any]] = {
    "mr": {**_BUILTIN["mr"], "ood": {"yelp": {"file": "yelp_polarity/test", "labels": _STARS}}},
    "sst2": {**_BUILTIN["sst2"], "ood": {"imdb": {"file": "imdb/test", "labels": _SIGNS}}},
    "meld": {
        **{split: f"meld/{split}" for split in ("train", "dev", "test")},
        "ood": {"goemotions": {key: _BUILTIN["goemotions"][key] for key in ("several", "labels")}},
    },
    "imdb": {
        "train": "imdb/train",
        "test": "imdb/test",
        "labels": _SIGNS,
        "ood": {"mr": {"file": "mr/test", "labels": _SIGNS}},
    },
    "boolq": _BUILTIN["boolq"],
    "newsempathy": {
        **{split: f"newsempathy_empathy/{split}" for split in ("train", "dev", "test")},
        "ood": {
            "epitome": {
                "file": "epitome_emotional_reactions/test",
                **{key: _BUILTIN["epitome"][key] for key in ("columns", "labels")},
            }
        },
    },
    "interpretations": {split: f"epitome_interpretations/{split}" for split in ("train", "dev", "test")},
    "mnli": {**{split: f"mnli/{split}" for split in ("train", "dev", "test")}, "ood": {"snli": "snli/test"}},
}
CONFIRMATION["meld"]["ood"]["goemotions"]["file"] = _BUILTIN["goemotions"]["test"]


@dataclass(frozen=True)
class Sizes:
    """How many rows of each set are taken at most."""

    rows: int
    held: int
    judged: int
    spoilt: int


@dataclass(frozen=True, eq=False)
class Prepared:
    """A task with everything tokenised and on the device."""

    labels: dict[str, NDArray[np.int64]]
    data: TrainingSet
    judged: dict[str, Packed]
    reference: NDArray[np.int64]
    fill: Mapping[str, int]
    label_names: tuple[str, ...]
    choices: bool


@cache
def prepare(model: str, task: str, folder: Path, sizes: Sizes) -> Prepared:
    train, others = sets_of(task, folder, sizes)
    choices = train.kind == "choices"
    network, tokenizer = loaded(model, train.label_names, choices, 0)
    limit = usable_length(tokenizer, network.config, 256)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    packed = {name: encode(examples, tokenizer, max_length=limit).to(device) for name, examples in others.items()}
    labels = {name: each.labels for name, each in others.items()}
    if sizes.spoilt:
        few = sampled(others["dev"], sizes.spoilt, 1)
        plain = encode(few, tokenizer, max_length=limit)
        for kind in SPOILT:
            packed[kind], labels[kind] = spoil(plain, kind, tokenizer).to(device), few.labels
        packed["mixed"], labels["mixed"] = plain.to(device), few.labels
    data = training_set(train, encode(train, tokenizer, max_length=limit)).to(device)
    reference = np.sort(np.random.default_rng(0).permutation(len(train))[: REFERENCE // (2 if choices else 1)])
    labels["train"] = train.labels
    return Prepared(labels, data, packed, reference, fill_tokens(tokenizer), train.label_names, choices)


def sets_of(name: str, folder: Path, sizes: Sizes) -> tuple[Examples, dict[str, Examples]]:
    """Return what is trained on, and what is looked at: dev, test, other domains' dev (`ood-`) and test (`away-`).

    A search, which has spoilt copies of dev, sees no test set of another domain.
    """
    task = parse_task(name, CONFIRMATION.get(name) or _BUILTIN[name], name)
    held = {
        f"ood-{domain}": replace(part, file=part.file.replace("/test", "/dev")) for domain, part in task.ood.items()
    }
    ood = {key: part for key, part in held.items() if has_inside(folder, part.file)}
    if not sizes.spoilt:
        ood |= {f"away-{domain}": part for domain, part in task.ood.items()}
    sets = gather(replace(task, ood=ood), folder)
    found = {"dev": sampled(sets.dev, sizes.held, 0), "test": sets.test, **sets.ood}
    return sampled(sets.train, sizes.rows, 0), {key: sampled(each, sizes.judged, 0) for key, each in found.items()}


@cache
def loaded(model: str, names: tuple[str, ...], choices: bool, seed: int) -> tuple[nn.Module, Any]:
    torch.manual_seed(seed)
    return load_for_training(resolve(model), label_names=names, choices=choices)


def spoil(packed: Packed, kind: str, tokenizer: Any, share: float = 0.3) -> Packed:
    """Return texts with three in ten tokens masked or replaced by others of the same texts, or all of them shuffled."""
    rng, ids = np.random.default_rng(2), packed.ids.numpy().copy()
    free = np.flatnonzero(~np.isin(ids, tokenizer.all_special_ids))
    if kind == "shuffle":
        text = np.searchsorted(packed.starts.numpy(), free, side="right")
        segment = np.zeros(len(ids), np.int64) if packed.types is None else packed.types.numpy()
        group = 2 * text + segment[free]
        order = np.lexsort((rng.random(len(free)), group))
        ids[free] = ids[free[order]]
    else:
        hit = free[rng.random(len(free)) < share]
        mask = tokenizer.pad_token_id if tokenizer.mask_token_id is None else tokenizer.mask_token_id
        ids[hit] = mask if kind == "mask" else rng.permutation(ids[free])[: len(hit)]
    return replace(packed, ids=torch.from_numpy(ids))
