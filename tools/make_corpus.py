"""Write the shipped corpus, Desk: four CSV files whose true class probabilities are known.

    python tools/make_corpus.py [FOLDER]

The material is in tools/corpus: one file of situations per intent, and frame.toml with what surrounds
them. The same material and seed give the same bytes. docs/corpus.md describes the result.
"""

import csv
import io
import json
import random
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

SEED = 20
INTENTS = ("account", "billing", "cancellation", "complaint", "delivery", "refund", "technical")
SIZES = {"train": 1200, "dev": 400, "test": 1000, "ood": 1000}
KINDS = {"clear": 0.55, "leaning": 0.25, "ambiguous": 0.20}
# Situations that train never sees; those of test (and ood) are not those of dev.
TEST_ONLY = {"clear": 19, "leaning": 9, "ambiguous": 7}
DEV_ONLY = {"clear": 11, "leaning": 5, "ambiguous": 4}
# In dev, test and ood a quarter of the rows has a new situation; in dev and test another 35 % has a new
# phrasing of a known situation. Every phrasing in ood is new.
NEW_SITUATION, NEW_PHRASING = 0.25, 0.35
MISLABELLED, IMPLAUSIBLE = 0.06, 0.02
SLIPS = 0.3
WORDS = range(5, 46)
NUMBERS = {"order": (10000, 99999), "year": (2009, 2022), "code": (1001, 9899), "pin": (1001, 9899)}
POUNDS = {"amount": (15, 120), "rate": (9, 48), "fee": (3, 18)}
QUESTION = re.compile(
    r"\?|^(can|how|what|whats|when|where|wheres|which|who|why|is|do|does|did|any|has|will|if|too late) "
    r"|can (u|i|my) |what (now|happens)"
)
COLUMNS = ("id", "text", "label", "_truth", "_mislabelled", "_situation")

MATERIAL = Path(__file__).parent / "corpus"
SHIPPED = Path(__file__).parent.parent / "src" / "calmix" / "data" / "corpus"

T = TypeVar("T")
Phrasing = tuple["Situation", str]


@dataclass(frozen=True)
class Situation:
    """What has happened to a customer, how they say it, and what the desk makes of it."""

    name: str
    truth: tuple[float, ...]
    formal: tuple[str, ...]
    casual: tuple[str, ...]

    @property
    def region(self) -> str:
        """The file that the situation stands in."""
        return self.name.split("/")[0]

    @property
    def kind(self) -> str:
        """How sure the desk is."""
        top = max(self.truth)
        return "clear" if top >= 0.9 else "leaning" if top > 0.6 else "ambiguous"


@dataclass(frozen=True)
class Plan:
    """Which situations are kept from train, and which phrasing of each of the others."""

    known: tuple[Situation, ...]
    dev_only: tuple[Situation, ...]
    test_only: tuple[Situation, ...]
    held_out: dict[str, str]


class Draw:
    """Random choices made of `random()` alone, the one method whose stream Python promises to keep."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed).random

    def pick(self, options: Sequence[T]) -> T:
        """Return one of the options."""
        return options[int(self.random() * len(options))]

    def between(self, low: int, high: int) -> int:
        """Return an integer from low to high, both included."""
        return low + int(self.random() * (high - low + 1))

    def chance(self, probability: float) -> bool:
        """Return true with this probability."""
        return self.random() < probability

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Return the items in a random order."""
        order = sorted((self.random(), place) for place in range(len(items)))
        return [items[place] for _, place in order]


def lines(text: str) -> tuple[str, ...]:
    """Return the lines of a block."""
    return tuple(text.strip().splitlines())


def read_situations() -> list[Situation]:
    """Return every situation, in the order of the files."""
    found = []
    for region in INTENTS:
        entries = tomllib.loads((MATERIAL / f"{region}.toml").read_text(encoding="utf-8"))
        for name, entry in entries.items():
            truth = tuple(float(entry["truth"].get(intent, 0.0)) for intent in INTENTS)
            if abs(sum(truth) - 1) > 1e-9 or not set(entry["truth"]) <= set(INTENTS):
                raise SystemExit(f"{region}.toml: the truth of [{name}] is not a distribution over the intents")
            found.append(Situation(f"{region}/{name}", truth, lines(entry["formal"]), lines(entry["casual"])))
    return found


def make_plan(situations: Sequence[Situation]) -> Plan:
    """Choose what train does not see: of every kind its quota, spread over the regions."""
    draw = Draw(f"{SEED} plan")
    known: list[Situation] = []
    dev_only: list[Situation] = []
    test_only: list[Situation] = []
    for kind in KINDS:
        by_region = [
            draw.shuffled([s for s in situations if (s.kind, s.region) == (kind, region)])
            for region in draw.shuffled(INTENTS)
        ]
        queue = [s for one_of_each in zip(*by_region, strict=True) for s in one_of_each]
        test, dev = TEST_ONLY[kind], DEV_ONLY[kind]
        test_only += queue[:test]
        dev_only += queue[test : test + dev]
        known += queue[test + dev :]
    held_out = {s.name: draw.pick(s.formal) for s in known}
    return Plan(tuple(known), tuple(dev_only), tuple(test_only), held_out)


def pools(plan: Plan, split: str) -> list[tuple[float, list[list[Phrasing]]]]:
    """Return the share of each pool of a split, and the pool: for every situation its phrasings."""

    def pool(situations: Sequence[Situation], style: str, held: bool | None = None) -> list[list[Phrasing]]:
        return [
            [(s, p) for p in getattr(s, style) if held is None or (p == plan.held_out[s.name]) is held]
            for s in situations
        ]

    if split == "train":
        return [(1.0, pool(plan.known, "formal", held=False))]
    if split == "ood":
        return [
            (NEW_SITUATION, pool(plan.test_only, "casual")),
            (1 - NEW_SITUATION, pool(plan.known, "casual")),
        ]
    new = plan.dev_only if split == "dev" else plan.test_only
    return [
        (NEW_SITUATION, pool(new, "formal")),
        (NEW_PHRASING, pool(plan.known, "formal", held=True)),
        (1 - NEW_SITUATION - NEW_PHRASING, pool(plan.known, "formal", held=False)),
    ]


def rounds(draw: Draw, pool: Sequence[Sequence[Phrasing]]) -> Iterator[Phrasing]:
    """Yield phrasings for ever: all situations in each round, and another phrasing in the next."""
    phrasings = [draw.shuffled(options) for options in pool]
    number = 0
    while True:
        for options in draw.shuffled(phrasings):
            yield options[number % len(options)]
        number += 1


class Writer:
    """Turns phrasings into messages of one style."""

    def __init__(self, draw: Draw, style: str) -> None:
        frame: dict[str, Any] = tomllib.loads((MATERIAL / "frame.toml").read_text(encoding="utf-8"))
        self.draw = draw
        self.formal = style == "formal"
        self.slots: dict[str, list[str]] = frame["slots"]["both"] | frame["slots"][style]
        self.frame = {name: lines(block) for name, block in frame[style].items()}

    def message(self, phrasing: str) -> str:
        """Return a message that says what the phrasing says."""
        seen: dict[str, str] = {}
        draw = self.draw
        frame = self.frame
        asks = QUESTION.search(phrasing) is not None
        asides = frame["asides"] + (frame["ask_asides"] if asks else ())
        closers = frame["closers"] + (() if asks else frame["tell_closers"])
        parts = [
            self.fill(draw.pick(options), seen) if draw.chance(probability) else ""
            for options, probability in ((frame["openers"], 0.45), (asides, 0.28), (closers, 0.45))
        ]
        core = self.fill(phrasing, seen)
        return self.in_full(core, *parts) if self.formal else self.in_brief(core, *parts)

    def fill(self, text: str, seen: dict[str, str]) -> str:
        """Return the text with its choices made and its slots filled."""
        text = re.sub(r"\[([^]]*)\]", lambda found: self.draw.pick(found[1].split("|")), text)
        return re.sub(r"\{([a-z]+)(\d?)\}", lambda found: self.value(found[1], found[2], seen), text)

    def value(self, slot: str, number: str, seen: dict[str, str]) -> str:
        """Return the value of a slot: the same one throughout a message, unless it is numbered."""
        key = slot + number
        while key not in seen:
            fresh = self.fresh(slot)
            if fresh not in seen.values():
                seen[key] = fresh
        return seen[key]

    def fresh(self, slot: str) -> str:
        """Return any value of a slot."""
        draw = self.draw
        if slot in self.slots:
            value = draw.pick(self.slots[slot])
            return value if self.formal else value.lower()
        if slot in POUNDS:
            pounds = draw.between(*POUNDS[slot])
            if self.formal:
                return f"£{pounds}" + draw.pick(("", ".50", ".95", ".99"))
            return draw.pick((f"£{pounds}", f"{pounds} quid", f"£{pounds}.99"))
        if slot == "date":
            day = draw.between(1, 28)
            if self.formal:
                return f"{day} {self.fresh('month')}"
            return f"the {day}{'th' if 4 <= day <= 20 else {1: 'st', 2: 'nd', 3: 'rd'}.get(day % 10, 'th')}"
        return str(draw.between(*NUMBERS[slot]))

    def in_full(self, core: str, opener: str, aside: str, closer: str) -> str:
        """Return a formal message."""
        body = " ".join(filter(None, (aside, core, closer)))
        if not opener:
            return body
        first = body.split()[0]
        return f"{opener} {body if first == 'I' else body[0].lower() + body[1:]}"

    def in_brief(self, core: str, opener: str, aside: str, closer: str) -> str:
        """Return a colloquial message."""
        draw = self.draw
        pause = " " if opener.endswith("?") else draw.pick((" ", " ", ", ", "... "))
        text = f"{opener}{pause}{core}" if opener else core
        for part in filter(None, (aside, closer)):
            pauses = (" ",) if not text[-1].isalnum() else (", ", "... ", " - ") if " " in part else (" ", ", ")
            text += draw.pick(pauses) + part
        if draw.chance(0.12):
            text = text[0].upper() + text[1:]
        return text

    def slip(self, text: str) -> str:
        """Return the text with two letters of a word exchanged, or one left out."""
        words = text.split(" ")
        long = [place for place, word in enumerate(words) if len(word) >= 5 and word.isalpha()]
        if long:
            place = self.draw.pick(long)
            word = words[place]
            at = self.draw.between(1, len(word) - 3)
            swapped = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
            words[place] = swapped if self.draw.chance(0.6) else word[:at] + word[at + 1 :]
        return " ".join(words)


def normalised(text: str) -> str:
    """Return what is left of a message without case, punctuation and numbers."""
    return " ".join(re.sub(r"[\W\d_]+", " ", text.casefold()).split())


def draw_label(draw: Draw, truth: Sequence[float]) -> str:
    """Return an intent drawn from the truth."""
    left = draw.random()
    for intent, probability in zip(INTENTS, truth, strict=True):
        left -= probability
        if left < 0:
            return intent
    return INTENTS[max(range(len(truth)), key=truth.__getitem__)]


def choose(draw: Draw, plan: Plan, split: str) -> Iterator[Phrasing]:
    """Yield the phrasings of a split: of every kind its share, and in it of every pool its own."""
    for kind, kind_share in KINDS.items():
        left = round(kind_share * SIZES[split])
        *others, main = pools(plan, split)
        sizes = [round(share * left) for share, _ in others]
        for size, (_, pool) in zip([*sizes, left - sum(sizes)], [*others, main], strict=True):
            yield from islice(rounds(draw, [ways for ways in pool if ways[0][0].kind == kind]), size)


def new_message(writer: Writer, phrasing: str, used: set[str]) -> str:
    """Return a message of proper length that is not yet used."""
    for _ in range(200):
        text = writer.message(phrasing)
        if normalised(text) not in used and len(text.split()) in WORDS:
            used.add(normalised(text))
            return text
    raise SystemExit(f"no new message left for: {phrasing}")


def make_split(plan: Plan, split: str, used: set[str]) -> list[dict[str, str]]:
    """Return the rows of a split, adding the normalised texts to those used."""
    draw = Draw(f"{SEED} {split}")
    writer = Writer(draw, "casual" if split == "ood" else "formal")
    chosen = []
    for situation, phrasing in draw.shuffled(list(choose(draw, plan, split))):
        text = new_message(writer, phrasing, used)
        if split == "ood" and draw.chance(SLIPS):
            text = writer.slip(text)
            used.add(normalised(text))
        chosen.append((situation, text))
    rows = [
        {
            "id": f"{split}-{number:04d}",
            "text": text,
            "label": draw_label(draw, situation.truth),
            "_truth": json.dumps(situation.truth),
            "_mislabelled": "false",
            "_situation": situation.name,
        }
        for number, (situation, text) in enumerate(chosen, 1)
    ]
    if split == "train":
        for place in draw.shuffled(range(len(rows)))[: round(MISLABELLED * len(rows))]:
            truth = chosen[place][0].truth
            implausible = [i for i, p in zip(INTENTS, truth, strict=True) if p < IMPLAUSIBLE]
            rows[place] |= {"label": draw.pick(implausible), "_mislabelled": "true"}
    return rows


def make_corpus() -> dict[str, bytes]:
    """Return the content of every file of the corpus by its name."""
    plan = make_plan(read_situations())
    used: set[str] = set()
    files = {}
    for split in SIZES:
        buffer = io.StringIO()
        table = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(make_split(plan, split, used))
        files[f"desk-{split}.csv"] = buffer.getvalue().encode()
    return files


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else SHIPPED
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in make_corpus().items():
        (folder / name).write_bytes(content)
