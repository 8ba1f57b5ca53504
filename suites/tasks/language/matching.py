"""Aligned words: detect shuffled translations by a latent matching of words."""

from __future__ import annotations

import copy
import csv
import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

from ....oracles import Assignment
from ....oracles.options import Count
from ...trust import text_of
from ..task import Batch, LatentModel, Rates, Split, Task, TaskLoss, label_loss, right, seeded
from ..training import descend, fit_decoder

STORIES: dict[Split, tuple[str, ...]] = {"validation": ("ChatBotte_MasterCat",), "test": ("LaVision_TheVision",)}
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

    @property
    def oracle(self) -> Assignment:
        return Assignment()

    def data(self, split: Split) -> Batch:
        return _read(*self.paths(), self.longest)[split]

    def model(self, seed: int) -> LatentModel:
        with seeded(seed):
            encoder = nn.Sequential(nn.Linear(FEATURES, self.hidden), nn.Tanh(), nn.Linear(self.hidden, 1), nn.Flatten(-2))
        return LatentModel(encoder, copy.deepcopy(_sorter(self.hidden, self.longest, seed)))

    def loss(self, model: LatentModel, batch: Batch) -> TaskLoss:
        return TaskLoss(lambda z: label_loss(model.decoder(batch.lengths, z), batch.labels), "cross_entropy")

    def judge(self, model: LatentModel, batch: Batch, structure: Tensor) -> Mapping[str, Tensor]:
        matched = batch.mean((structure * batch.true()).sum(-1))
        return {"accuracy": right(model.decoder(batch.lengths, structure), batch.labels), "structure_accuracy": matched}

    def floor(self, seed: int) -> Mapping[str, float]:
        """The more frequent answer."""
        test = self.data("test").labels
        return {"accuracy": max(float(test.mean()), 1 - float(test.mean()))}

    def ceiling(self, seed: int) -> Mapping[str, float]:
        """The decoder trained and tested on the annotators' matchings."""
        return fit_decoder(self, self.model(seed), Batch.true, rate=0.01, seed=seed)


class Order(nn.Module):
    """Whether matched places are in order: a multilayer perceptron of every step from one to the next, on average."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.of_step = nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, 1), nn.Flatten(-2))

    def forward(self, lengths: Tensor, z: Tensor) -> Tensor:
        """``[b], [..., b, n, n] -> [..., b]``: logits."""
        places = z @ torch.arange(z.shape[-1], dtype=z.dtype)
        inside = torch.arange(1, z.shape[-1]) < lengths.unsqueeze(-1)
        logits: Tensor = (self.of_step(places.diff(dim=-1).unsqueeze(-1)) * inside).sum(-1) / (lengths - 1)
        return logits


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


class MatchingSentence(NamedTuple):
    """Words of both languages, and the links between them that are one-to-one and sure."""

    story: str
    french: Sequence[str]
    english: Sequence[str]
    links: Sequence[tuple[int, int]]


@functools.lru_cache(maxsize=4)
def _read(aligned: Path, parallel: Path, longest: int) -> Mapping[Split, Batch]:
    sentences = list(read_links(text_of(aligned)))
    table = [(_words(line["fr"]), _words(line["en"])) for line in _lines(text_of(parallel))]
    together = CoOccurrence([*((one.french, one.english) for one in sentences), *table])
    kept = {story: split for split, stories in STORIES.items() for story in stories}
    found: dict[Split, list[tuple[Tensor, Tensor]]] = {"train": [], "validation": [], "test": []}
    for sentence in sentences:
        found[kept.get(sentence.story, "train")] += blocks_of(sentence, together, longest)
    return {split: _padded(parts, longest) for split, parts in found.items()}


def _words(text: str) -> list[str]:
    return re.findall(r"\w+'?|[^\w\s]", text)


def _lines(text: str) -> Iterator[dict[str, str]]:
    return csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)


def read_links(text: str) -> Iterator[MatchingSentence]:
    """Sentence pairs of a table ``book, id, fr, en, links``; links are ``i-j``, sure, or ``ipj``, possible."""
    for line in _lines(text):
        links = [(int(i), int(j), mark) for i, mark, j in (link.partition("p" if "p" in link else "-") for link in line["links"].split())]
        rows, columns = Counter(i for i, _, _ in links), Counter(j for _, j, _ in links)
        alone = sorted((i, j) for i, j, mark in links if mark == "-" and rows[i] == columns[j] == 1)
        yield MatchingSentence(line["book"], line["fr"].split(), line["en"].split(), alone)


def blocks_of(sentence: MatchingSentence, together: CoOccurrence, longest: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Features of pairs ``[n, n, f]`` and gold columns ``[n]`` of the blocks of a sentence, of 4 to ``longest`` words in turn."""
    left = list(sentence.links)
    for size in itertools.cycle(range(4, longest + 1)):
        if len(left) < size:
            return
        block, left = left[:size], left[size:]
        columns = sorted(j for _, j in block)
        french, english = [sentence.french[i] for i, _ in block], [sentence.english[j] for j in columns]
        yield together.features(french, english), torch.tensor([columns.index(j) for _, j in block])


def _padded(blocks: Sequence[tuple[Tensor, Tensor]], longest: int) -> Batch:
    """Features ``[b, n, n, f]`` of each block in its order, label 0, and with its columns in another order, label 1."""
    generator = torch.Generator().manual_seed(0)
    pairs, gold = torch.zeros(2 * len(blocks), longest, longest, FEATURES), torch.eye(longest).repeat(2 * len(blocks), 1, 1)
    for item, (features, columns) in enumerate(blocks):
        size = len(columns)
        orders = (torch.arange(size), _shuffle(size, generator))
        for place, order in enumerate(orders, 2 * item):
            pairs[place, :size, :size] = features[:, order]
            gold[place, :size, :size] = torch.eye(size)[columns][:, order]
    lengths = torch.tensor([len(columns) for _, columns in blocks]).repeat_interleave(2)
    return Batch((pairs,), torch.tensor([0.0, 1.0]).repeat(len(blocks)), lengths, gold)


def _shuffle(size: int, generator: torch.Generator) -> Tensor:
    """A random order that is not sorted."""
    while True:
        order = torch.randperm(size, generator=generator)
        if bool((order.diff() != 1).any()):
            return order


class CoOccurrence:
    """Counts of words in the same sentence pairs, in lower case."""

    def __init__(self, pairs: Sequence[tuple[Iterable[str], Iterable[str]]]) -> None:
        self.numbers: tuple[dict[str, int], dict[str, int]] = ({}, {})
        held = []
        for side, numbers in enumerate(self.numbers):
            words = [{numbers.setdefault(word.lower(), len(numbers)) for word in pair[side]} for pair in pairs]
            starts = np.cumsum([0, *map(len, words)])
            columns = np.fromiter(itertools.chain.from_iterable(words), int)
            held.append(sparse.csr_matrix((np.ones(len(columns)), columns, starts), shape=(len(pairs), len(numbers))))
        self.both = (held[0].T @ held[1]).tocsr()
        self.times = tuple(np.asarray(one.sum(0))[0] for one in held)

    def features(self, french: Sequence[str], english: Sequence[str]) -> Tensor:
        """Features ``[n, m, 5]`` of pairs of words: two of their counts, three of `_looks`."""
        rows, columns = ([numbers[word.lower()] for word in words] for numbers, words in zip(self.numbers, (french, english), strict=True))
        of_french, of_english = self.times[0][rows][:, None], self.times[1][columns][None]
        both = self.both[rows][:, columns].toarray()
        looks = [[_looks(one.lower(), other.lower()) for other in english] for one in french]
        common = np.stack([2 * both / (of_french + of_english), np.log(of_french / of_english)], -1)
        return torch.tensor(np.concatenate([common, looks], -1), dtype=torch.float32)


def _looks(one: str, other: str) -> tuple[float, float, float]:
    """Dice coefficient of letter pairs, difference of lengths, and whether neither has letters."""
    first, second = ({*itertools.pairwise(f"^{word}$")} for word in (one, other))
    return (
        2 * len(first & second) / (len(first) + len(second)),
        (len(one) - len(other)) / 5,
        float(not any(letter.isalnum() for letter in one + other)),
    )
