"""Sentences with dependency trees, and a parser that scores arcs."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ....oracles import ProjectiveTree
from ....oracles.options import Count
from ...trust import text_of
from ..task import Batch, Split, Task

BUCKETS = 1000
"""Embeddings that the features of words share."""

FEATURES = 5


class Sentence(NamedTuple):
    """Words with their parts of speech, heads, counted from 1 with 0 for the root, and relations without subtypes."""

    words: Sequence[str]
    tags: Sequence[str]
    heads: Sequence[int]
    relations: Sequence[str]


class Treebank(NamedTuple):
    """The sentences of every split.

    Attributes:
        trees: features ``[b, n + 1, f]`` of root and words, and heads ``[b, n]`` as labels.
        relations: numbers ``[b, n]``. ``names``: names of relations, of which the last stands for all that were not seen.
    """

    trees: dict[Split, Batch]
    relations: dict[Split, Tensor]
    names: tuple[str, ...]


@dataclass(frozen=True)
class TreebankTask(Task):
    """A task on short English sentences, whose structures are their dependency trees.

    Args:
        shortest, longest: words of a sentence.
    """

    shortest: Count = 4
    longest: Count = 7

    files: ClassVar[tuple[str, ...]] = ("conllu/en_ewt-train-5000.conllu.gz", "conllu/en_ewt-heldout.conllu")

    @property
    def oracle(self) -> ProjectiveTree:
        return ProjectiveTree()

    def treebank(self) -> Treebank:
        """The sentences; a tenth of those for training is for validation."""
        return _read(*self.paths(), self.shortest, self.longest)

    def data(self, split: Split) -> Batch:
        return self.treebank().trees[split]


def attachment(batch: Batch, z: Tensor) -> Tensor:
    """``[..., b, n + 1, n + 1] -> [..., b]``: the share of words whose head is the true one, linear in z."""
    assert batch.lengths is not None
    inside = torch.arange(z.shape[-1]) <= batch.lengths.unsqueeze(-1)
    return ((z * batch.true()).sum(-2) * inside).sum(-1) / batch.lengths


@functools.lru_cache(maxsize=4)
def _read(trained: Path, held_out: Path, shortest: int, longest: int) -> Treebank:
    every = [[one for one in read_conllu(text_of(path)) if usable(one, shortest, longest)] for path in (trained, held_out)]
    parts: dict[Split, list[Sentence]] = {
        "train": [one for number, one in enumerate(every[0]) if number % 10],
        "validation": every[0][::10],
        "test": every[1],
    }
    names = (*sorted({name for one in parts["train"] for name in one.relations}), "unseen")
    found = {split: tensors(sentences, longest, names) for split, sentences in parts.items()}
    return Treebank({split: trees for split, (trees, _) in found.items()}, {split: numbers for split, (_, numbers) in found.items()}, names)


def read_conllu(text: str) -> Iterator[Sentence]:
    """The sentences of a CoNLL-U file; of its rows those that are words: neither ranges nor empty nodes."""
    for rows in sentence_rows(text):
        words = [row for row in rows if row[0].isdigit()]
        if words:
            yield Sentence(
                [row[1] for row in words],
                [row[3] for row in words],
                [int(row[6]) for row in words],
                [row[7].partition(":")[0] for row in words],
            )


def sentence_rows(text: str) -> Iterator[list[list[str]]]:
    """The rows of every sentence of a file whose columns are separated by tabs, and whose sentences are separated by empty lines."""
    for block in text.split("\n\n"):
        if rows := [line.split("\t") for line in block.splitlines() if line and not line.startswith("#")]:
            yield rows


def usable(sentence: Sentence, shortest: int, longest: int) -> bool:
    """Whether a sentence has ``shortest`` to ``longest`` words, one of them headed by the root, and no crossing arcs."""
    if not shortest <= len(sentence.words) <= longest or list(sentence.heads).count(0) != 1:
        return False
    arcs = [(min(head, word), max(head, word)) for word, head in enumerate(sentence.heads, 1)]
    return not any(first < begin < last < end for first, last in arcs for begin, end in arcs)


def tensors(sentences: Sequence[Sentence], longest: int, relations: Sequence[str]) -> tuple[Batch, Tensor]:
    """Trees and relations, padded to the longest; in padding every word is headed by the one before, as the oracle completes trees."""
    features = torch.zeros(len(sentences), longest + 1, FEATURES, dtype=torch.long)
    heads = torch.arange(longest).repeat(len(sentences), 1)
    numbers = torch.zeros(len(sentences), longest, dtype=torch.long)
    known = {name: number for number, name in enumerate(relations)}
    for item, sentence in enumerate(sentences):
        size = len(sentence.words)
        features[item, : size + 1] = torch.tensor([_hashed("", "ROOT"), *map(_hashed, sentence.words, sentence.tags)])
        heads[item, :size] = torch.tensor(sentence.heads)
        numbers[item, :size] = torch.tensor([known.get(name, len(relations) - 1) for name in sentence.relations])
    lengths = torch.tensor([len(sentence.words) for sentence in sentences])
    return Batch((features,), heads, lengths, structure_of(heads)), numbers


def _hashed(word: str, tag: str) -> list[int]:
    shape = "".join("X" if letter.isupper() else "9" if letter.isdigit() else "x" if letter.isalpha() else letter for letter in word)[:4]
    parts = (f"tag={tag}", f"word={word.lower()}", f"end={word[-3:].lower()}", f"begin={word[:3].lower()}", f"shape={shape}")
    return [bucket(part, BUCKETS) for part in parts]


@functools.lru_cache(maxsize=100_000)
def bucket(feature: str, buckets: int) -> int:
    """The number of a feature, from 1; 0 is for padding."""
    return 1 + int.from_bytes(hashlib.blake2b(feature.encode(), digest_size=4).digest(), "big") % (buckets - 1)


def structure_of(heads: Tensor) -> Tensor:
    """``[..., n]`` -> float32 ``[..., n + 1, n + 1]``: heads as an oracle's structure."""
    return ProjectiveTree.structure(heads, torch.float32)


class Words(nn.Module):
    """Embeddings of words: the sum of those of their features."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.table = nn.Embedding(BUCKETS, size)
        nn.init.normal_(self.table.weight, std=0.3)

    def forward(self, features: Tensor) -> Tensor:
        """``[b, n, f] -> [b, n, size]``."""
        return self.table(features).sum(-2)  # type: ignore[no-any-return]


class Apart(nn.Module):
    """A vector for how far a head is before or after its modifier."""

    places: Tensor

    def __init__(self, size: int, longest: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(2 * longest + 1, size))
        place = torch.arange(longest + 1)
        self.register_buffer("places", place.unsqueeze(0) - place.unsqueeze(1) + longest)

    def forward(self) -> Tensor:
        """``[n + 1, n + 1, size]``: heads before modifiers."""
        return self.table[self.places]


class ArcScorer(nn.Module):
    """Scores of arcs: a perceptron of head, modifier, their neighbours, and their distance.

    Args:
        size: of embeddings and of the hidden layer.
        longest: words of a sentence.
    """

    def __init__(self, size: int, longest: int) -> None:
        super().__init__()
        self.words = Words(size)
        self.head, self.modifier = nn.Linear(3 * size, size), nn.Linear(3 * size, size, bias=False)
        self.apart = Apart(size, longest)
        self.out = nn.Linear(size, 1)

    def forward(self, features: Tensor) -> Tensor:
        """``[b, n + 1, f] -> [b, n + 1, n + 1]``: heads before modifiers."""
        embedded = self.words(features)
        pad = torch.zeros_like(embedded[..., :1, :])
        around = torch.cat([embedded, torch.cat([pad, embedded[..., :-1, :]], -2), torch.cat([embedded[..., 1:, :], pad], -2)], -1)
        hidden = self.head(around).unsqueeze(-2) + self.modifier(around).unsqueeze(-3) + self.apart()
        return self.out(hidden.tanh()).squeeze(-1)  # type: ignore[no-any-return]
