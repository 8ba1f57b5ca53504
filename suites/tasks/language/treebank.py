"""Dependency trees of short English sentences: parsing with known trees, and a parser within a pipeline."""

from __future__ import annotations

import copy
import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ....estimators import crf_loss
from ....oracles import ProjectiveTree
from ....oracles.options import Count
from ...trust import text_of
from ..task import Batch, LatentModel, Rates, Split, Steps, Task, TaskLoss, label_loss, right, seeded
from ..training import fit, fit_decoder

BUCKETS = 1000  # embeddings that the features of words share

FEATURES = 5


@dataclass(frozen=True)
class TreebankTask(Task):
    """A task on short English sentences, whose structures are their dependency trees."""

    shortest: Count = 4
    longest: Count = 7

    files: ClassVar[tuple[str, ...]] = ("conllu/en_ewt-train-5000.conllu.gz", "conllu/en_ewt-heldout.conllu")
    family = "treebank"
    oracle = ProjectiveTree()

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


@dataclass(frozen=True)
class Parsing(TreebankTask):
    """A dependency parser of short English sentences, trained on their trees.

    Its loss is the share of words with a wrong head, so that estimators minimise risk; supervised estimators have losses of their own.
    Accuracy is the unlabelled attachment score of a sentence, structure quality the share of sentences without a mistake.

    Args:
        shortest, longest: words of a sentence. ``hidden``: size of embeddings and of the hidden layer.
    """

    hidden: Count = 32
    steps: Count = 300
    rates: Rates = (0.003, 0.01, 0.03)
    batch_size: Count = 32

    name: ClassVar[str] = "parsing"
    summary: ClassVar[str] = "dependency parsing with known trees"
    scored: ClassVar[str] = "unlabelled attachment score"
    structured: ClassVar[str] = "whole trees"
    best: ClassVar[str] = "crf"
    kind, decoding = "linear", "none"

    def modules(self) -> tuple[nn.Module, nn.Module]:
        return ArcScorer(self.hidden, self.longest), nn.Identity()

    def loss(self, model: LatentModel, batch: Batch) -> TaskLoss:
        return TaskLoss(lambda z: 1 - attachment(batch, z), "wrong_heads", vertex_degree=1, extension="linear", gold=batch.gold)

    def judge(self, model: LatentModel, batch: Batch, structure: Tensor) -> Mapping[str, Tensor]:
        right = attachment(batch, structure)
        return {"accuracy": right, "structure_accuracy": (right > 1 - 1e-6).float()}

    def floor(self, seed: int) -> float:
        """Every word headed by the one before it, or all by the one after, whichever is better on the sentences to learn from."""
        return self._chain("test", max((-1, 1), key=lambda side: self._chain("train", side)))

    def _chain(self, split: Split, side: int) -> float:
        trees = self.data(split)
        assert trees.lengths is not None
        heads = torch.arange(1, self.longest + 1) + side
        return float(trees.mean(trees.labels == torch.where(heads > trees.lengths.unsqueeze(-1), 0, heads)).mean())


@dataclass(frozen=True)
class Pipeline(TreebankTask):
    """Grammatical relations of words, from each word and its head in a tree that a parser chose.

    The parser is pretrained on the trees of some sentences; the others are used without their trees. The estimator ``frozen`` keeps the
    parser; every other estimator continues its training through the relations. Structure quality is the unlabelled attachment score: its
    change shows whether the latent trees remain those of the grammar. After Peng, Thomson & Smith 2018, sections 4 and 5.

    Args:
        shortest, longest: words of a sentence. ``parsed``: sentences that the parser is trained on alone, for ``parser_steps``.
        hidden: size of embeddings and hidden layers.
    """

    parsed: Count = 200
    parser_steps: Steps = 100
    hidden: Count = 32
    steps: Count = 300
    rates: Rates = (0.001, 0.003, 0.01)
    batch_size: Count = 32

    name: ClassVar[str] = "pipeline"
    summary: ClassVar[str] = "grammatical relations through a parser that was trained alone"
    scored: ClassVar[str] = "right relations of words"
    references: ClassVar[tuple[str, ...]] = ("peng2018backpropagating",)
    structured: ClassVar[str] = "unlabelled attachment score"

    def model(self, seed: int) -> LatentModel:
        with seeded(seed):
            decoder = Relations(self.hidden, self.longest, len(self.treebank().names))
        return LatentModel(copy.deepcopy(_parser(replace(self, steps=1, rates=()), seed)), decoder)

    def data(self, split: Split) -> Batch:
        bank, first = self.treebank(), self.parsed if split == "train" else 0
        return bank.trees[split]._replace(labels=bank.relations[split]).map(lambda part: part[first:])

    def loss(self, model: LatentModel, batch: Batch) -> TaskLoss:
        return TaskLoss(lambda z: batch.mean(label_loss(self.predict(model, batch, z), batch.labels)), "cross_entropy", gold=batch.gold)

    def judge(self, model: LatentModel, batch: Batch, structure: Tensor) -> Mapping[str, Tensor]:
        accuracy = batch.mean(right(self.predict(model, batch, structure), batch.labels))
        return {"accuracy": accuracy, "structure_accuracy": attachment(batch, structure)}

    def floor(self, seed: int) -> float:
        """The decoder trained and tested without heads."""
        return fit_decoder(self, self.model(seed), lambda batch: torch.zeros_like(batch.true()), rate=0.003, seed=seed)["accuracy"]


@functools.lru_cache(maxsize=16)
def _parser(task: Pipeline, seed: int) -> ArcScorer:
    """A parser trained by the likelihood of the trees that it may see."""
    with seeded(seed):
        parser = ArcScorer(task.hidden, task.longest)

    def loss(items: Tensor) -> Tensor:
        batch = task.treebank().trees["train"].take(items)
        return crf_loss(task.oracle, parser(*batch.inputs), batch.true(), lengths=batch.lengths).mean()

    if task.parser_steps:  # as many items to learn from as the task leaves out
        fit(parser, loss, replace(task, steps=task.parser_steps, parsed=task.size("train")), rate=0.01, seed=seed)
    return parser


class Word(NamedTuple):
    """A word with its part of speech, its head, counted from 1 with 0 for the root, and its relation without subtype."""

    form: str
    tag: str
    head: int
    relation: str


class Treebank(NamedTuple):
    """The sentences of every split."""

    trees: dict[Split, Batch]  # features ``[b, n + 1, f]`` of root and words, and heads ``[b, n]`` as labels
    relations: dict[Split, Tensor]  # numbers ``[b, n]``
    names: tuple[str, ...]  # names of relations, of which the last stands for all that were not seen


@functools.lru_cache(maxsize=4)
def _read(trained: Path, held_out: Path, shortest: int, longest: int) -> Treebank:
    every, test = ([one for one in read_conllu(text_of(path)) if usable(one, shortest, longest)] for path in (trained, held_out))
    train = [one for number, one in enumerate(every) if number % 10]
    parts: dict[Split, list[list[Word]]] = {"train": train, "validation": every[::10], "test": test}
    names = (*sorted({word.relation for one in train for word in one}), "unseen")
    known = {name: number for number, name in enumerate(names)}
    found, relations = {}, {}
    for split, sentences in parts.items():
        features, numbers = torch.zeros(len(sentences), longest + 1, FEATURES, dtype=torch.long), torch.zeros(len(sentences), longest)
        heads = torch.arange(longest).repeat(len(sentences), 1)  # padding is headed by the word before, as the oracle completes trees
        for item, words in enumerate(sentences):
            features[item, : len(words) + 1] = torch.tensor([_hashed("", "ROOT"), *(_hashed(word.form, word.tag) for word in words)])
            heads[item, : len(words)] = torch.tensor([word.head for word in words])
            numbers[item, : len(words)] = torch.tensor([known.get(word.relation, len(names) - 1) for word in words])
        lengths = torch.tensor([len(words) for words in sentences])
        found[split] = Batch((features,), heads, lengths, ProjectiveTree.structure(heads, torch.float32))
        relations[split] = numbers.long()
    return Treebank(found, relations, names)


def read_conllu(text: str) -> Iterator[list[Word]]:
    """The sentences of a CoNLL-U file; of its rows those that are words: neither ranges nor empty nodes."""
    for rows in sentence_rows(text):
        yield [Word(row[1], row[3], int(row[6]), row[7].partition(":")[0]) for row in rows if row[0].isdigit()]


def sentence_rows(text: str) -> Iterator[list[list[str]]]:
    """The rows of every sentence of a file whose columns are separated by tabs, and whose sentences are separated by empty lines."""
    for block in text.split("\n\n"):
        if rows := [line.split("\t") for line in block.splitlines() if line and not line.startswith("#")]:
            yield rows


def usable(sentence: Sequence[Word], shortest: int, longest: int) -> bool:
    """Whether a sentence has ``shortest`` to ``longest`` words, one of them headed by the root, and no crossing arcs."""
    heads = [word.head for word in sentence]
    if not shortest <= len(heads) <= longest or heads.count(0) != 1:
        return False
    arcs = [(min(head, word), max(head, word)) for word, head in enumerate(heads, 1)]
    return not any(first < begin < last < end for first, last in arcs for begin, end in arcs)


def _hashed(word: str, tag: str) -> list[int]:
    shape = "".join("X" if letter.isupper() else "9" if letter.isdigit() else "x" if letter.isalpha() else letter for letter in word)[:4]
    parts = (f"tag={tag}", f"word={word.lower()}", f"end={word[-3:].lower()}", f"begin={word[:3].lower()}", f"shape={shape}")
    return [bucket(part, BUCKETS) for part in parts]


@functools.lru_cache(maxsize=100_000)
def bucket(feature: str, buckets: int) -> int:
    """The number of a feature, from 1; 0 is for padding."""
    return 1 + int.from_bytes(hashlib.blake2b(feature.encode(), digest_size=4).digest(), "big") % (buckets - 1)


class Words(nn.Embedding):
    """Embeddings of words: the sum of those of their features."""

    def forward(self, features: Tensor) -> Tensor:
        """``[b, n, f] -> [b, n, size]``."""
        return super().forward(features).sum(-2)


def distances(size: int) -> Tensor:
    """How far a head is before or after its modifier, as numbers ``[size, size]`` from 0: heads before modifiers."""
    place = torch.arange(size)
    return place - place.unsqueeze(1) + size - 1


class ArcScorer(nn.Module):
    """Scores of arcs: a perceptron of head, modifier, their neighbours, and their distance."""

    def __init__(self, size: int, longest: int) -> None:
        super().__init__()
        self.words = Words(BUCKETS, size)
        nn.init.normal_(self.words.weight, std=0.3)
        self.head, self.modifier = nn.Linear(3 * size, size), nn.Linear(3 * size, size, bias=False)
        self.apart = nn.Embedding.from_pretrained(torch.zeros(2 * longest + 1, size), freeze=False)
        self.out = nn.Linear(size, 1)

    def forward(self, features: Tensor) -> Tensor:
        """``[b, n + 1, f] -> [b, n + 1, n + 1]``: heads before modifiers."""
        embedded = self.words(features)
        pad = torch.zeros_like(embedded[..., :1, :])
        around = torch.cat([embedded, torch.cat([pad, embedded[..., :-1, :]], -2), torch.cat([embedded[..., 1:, :], pad], -2)], -1)
        hidden = self.head(around).unsqueeze(-2) + self.modifier(around).unsqueeze(-3) + self.apart(distances(features.shape[-2]))
        return self.out(hidden.tanh()).squeeze(-1)  # type: ignore[no-any-return]


class Relations(nn.Module):
    """Relations of words: a perceptron of each word and the mean of its heads, with how far they are apart."""

    def __init__(self, size: int, longest: int, relations: int) -> None:
        super().__init__()
        self.words = Words(BUCKETS, size)
        nn.init.normal_(self.words.weight, std=0.3)
        self.modifier, self.head = nn.Linear(size, size), nn.Linear(size, size, bias=False)
        self.apart = nn.Embedding.from_pretrained(torch.zeros(2 * longest + 1, size), freeze=False)
        self.out = nn.Linear(size, relations)

    def forward(self, features: Tensor, z: Tensor) -> Tensor:
        """``[b, n + 1, f], [..., b, n + 1, n + 1] -> [..., b, n, R]``: logits."""
        embedded = self.words(features)
        z = z * features.any(-1).unsqueeze(-1)  # padding heads no word
        apart = torch.einsum("...hm,hmd->...md", z, self.apart(distances(features.shape[-2])))
        hidden = self.modifier(embedded) + z.mT @ self.head(embedded) + apart
        return self.out(hidden[..., 1:, :].tanh())  # type: ignore[no-any-return]
