"""Aligned words: detect shuffled translations by a latent matching of words."""

import copy
import csv
import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from ....oracles import Assignment
from ....oracles.options import Count
from ...trust import text_of
from ..task import Batch, LatentModel, Rates, Split, Task, label_loss, seeded
from ..training import descend

STORIES: dict[str, Split] = {"ChatBotte_MasterCat": "validation", "LaVision_TheVision": "test"}
"""Stories of validation and test; blocks of all others are for training."""

FEATURES = 5


@dataclass(frozen=True)
class Matching(Task):
    """Classify whether the English words of a French block are shuffled, by a latent matching of the words.

    A block is a run of words with one sure link each, and no other. It occurs twice: in its order, and with the English words in random
    order. The encoder scores pairs of words by spelling and joint frequency, and does not get their positions. The decoder gets the
    positions of the matched words, and no words. It is pretrained to separate ordered from random positions: else an encoder may learn to
    match unrelated words. Structures are permutations. Their quality is the share of words matched as by the annotators.

    Args:
        longest: words of a block, at least 4. ``hidden``: units of encoder and decoder.
    """

    longest: Count = 6
    hidden: Count = 16
    steps: Count = 400
    rates: Rates = (0.003, 0.01, 0.03)
    batch_size: Count = 64

    name: ClassVar[str] = "matching"
    summary: ClassVar[str] = "shuffled translations by a latent alignment of their words"
    structured: ClassVar[str] = "matched words"
    files: ClassVar[tuple[str, ...]] = ("alignment/alibi_fr-en.tsv", "alignment/transread_novels_fr-en.tsv.gz")
    family, decoding = "matching", "frozen"
    oracle = Assignment()

    def data(self, split: Split) -> Batch:
        return _read(*self.paths(), self.longest)[split]

    def model(self, seed: int) -> LatentModel:
        with seeded(seed):
            encoder = nn.Sequential(nn.Linear(FEATURES, self.hidden), nn.Tanh(), nn.Linear(self.hidden, 1), nn.Flatten(-2))
        return LatentModel(encoder, copy.deepcopy(_sorter(self.hidden, self.longest, seed)))

    def predict(self, model: LatentModel, batch: Batch, structure: Tensor) -> Tensor:
        return model.decoder(batch.lengths, structure)  # type: ignore[no-any-return]

    def quality(self, batch: Batch, structure: Tensor) -> Tensor:
        return batch.mean((structure * batch.true()).sum(-1))


class Order(nn.Module):
    """Whether matched places are in order: a multilayer perceptron of every step from one to the next, on average."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.of_step = nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, 1), nn.Flatten(-2))

    def forward(self, lengths: Tensor, z: Tensor) -> Tensor:
        """``[b], [..., b, n, n] -> [..., b]``: logits."""
        places = z @ torch.arange(z.shape[-1], dtype=z.dtype)
        inside = torch.arange(1, z.shape[-1]) < lengths.unsqueeze(-1)
        return (self.of_step(places.diff(dim=-1).unsqueeze(-1)) * inside).sum(-1) / (lengths - 1)  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=16)
def _sorter(hidden: int, longest: int, seed: int) -> Order:
    """A decoder that tells matchings in order from others, by examples without words."""
    generator = torch.Generator().manual_seed(seed)
    with seeded(seed):
        order = Order(hidden)
    place = torch.arange(longest)

    def loss() -> Tensor:
        lengths = torch.randint(4, longest + 1, (64,), generator=generator)
        shuffled = torch.arange(64) % 2 == 1
        moved = shuffled.unsqueeze(-1) & (place < lengths.unsqueeze(-1))
        keys = torch.where(moved, torch.rand(64, longest, generator=generator), place.float())
        matching = nn.functional.one_hot(keys.argsort(-1), longest).float()
        return label_loss(order(lengths, matching), shuffled.float()).mean()

    descend(order, loss, steps=200, rate=0.01, clip=math.inf)
    return order


Occurrences = dict[str, set[int]]  # the numbers of the sentence pairs that hold a word, in lower case


@functools.lru_cache(maxsize=4)
def _read(aligned: Path, parallel: Path, longest: int) -> Mapping[Split, Batch]:
    lines = list(_lines(text_of(aligned)))
    pairs = [(line["fr"].split(), line["en"].split()) for line in lines]
    words_of = re.compile(r"\w+'?|[^\w\s]").findall
    others = [(words_of(line["fr"]), words_of(line["en"])) for line in _lines(text_of(parallel))]
    known: tuple[Occurrences, Occurrences] = ({}, {})
    for number, pair in enumerate([*pairs, *others]):
        for side, words in zip(known, pair, strict=True):
            for word in words:
                side.setdefault(word.lower(), set()).add(number)
    found: dict[Split, list[tuple[Tensor, Tensor]]] = {"train": [], "validation": [], "test": []}
    for line, (french, english) in zip(lines, pairs, strict=True):
        links = sure_links(line["links"])
        for size in itertools.cycle(range(4, longest + 1)):  # blocks of 4 to ``longest`` links in turn
            if len(links) < size:
                break
            block, links = links[:size], links[size:]
            columns = sorted(j for _, j in block)
            features = torch.tensor([[pair_features(french[i].lower(), english[j].lower(), known) for j in columns] for i, _ in block])
            found[STORIES.get(line["book"], "train")].append((features, torch.tensor([columns.index(j) for _, j in block])))
    return {split: _padded(parts, longest) for split, parts in found.items()}


def _lines(text: str) -> Iterator[dict[str, str]]:
    return csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)


def sure_links(text: str) -> list[tuple[int, int]]:
    """Links that are sure, ``i-j``, and one-to-one; ``ipj`` is a possible link.

    Example:
        >>> sure_links("2-2 0-1 1-0 3p3 4-4 4p5")
        [(0, 1), (1, 0), (2, 2)]
    """
    links = [(int(i), int(j), mark) for i, mark, j in (link.partition("p" if "p" in link else "-") for link in text.split())]
    rows, columns = Counter(i for i, _, _ in links), Counter(j for _, j, _ in links)
    return sorted((i, j) for i, j, mark in links if mark == "-" and rows[i] == columns[j] == 1)


def _padded(blocks: Sequence[tuple[Tensor, Tensor]], longest: int) -> Batch:
    """Features ``[b, n, n, f]`` of each block in its order, label 0, and with its columns in another order, label 1."""
    generator = torch.Generator().manual_seed(0)
    pairs, gold = torch.zeros(2 * len(blocks), longest, longest, FEATURES), torch.eye(longest).repeat(2 * len(blocks), 1, 1)
    for item, (features, columns) in enumerate(blocks):
        size = len(columns)
        shuffled = ordered = torch.arange(size)
        while torch.equal(shuffled, ordered):
            shuffled = torch.randperm(size, generator=generator)
        for place, order in enumerate((ordered, shuffled), 2 * item):
            pairs[place, :size, :size] = features[:, order]
            gold[place, :size, :size] = torch.eye(size)[columns][:, order]
    lengths = torch.tensor([len(columns) for _, columns in blocks]).repeat_interleave(2)
    return Batch((pairs,), torch.tensor([0.0, 1.0]).repeat(len(blocks)), lengths, gold)


def pair_features(one: str, other: str, known: tuple[Occurrences, Occurrences]) -> list[float]:
    """Overlap of their sentence pairs, ratio of their counts, overlap of letters, difference of lengths, and lack of letters."""
    first, second = known[0][one], known[1][other]
    left, right = ({*itertools.pairwise(f"^{word}$")} for word in (one, other))
    return [
        2 * len(first & second) / (len(first) + len(second)),
        math.log(len(first) / len(second)),
        2 * len(left & right) / (len(left) + len(right)),
        (len(one) - len(other)) / 5,
        float(not any(letter.isalnum() for letter in one + other)),
    ]
