"""Named entities with known tags, for supervised losses of a chain."""

import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from ....oracles import LinearChain
from ....oracles.options import Count
from ...trust import text_of
from ..generated.sequences import Tagger
from ..task import Batch, LatentModel, Rates, Split, Task, TaskLoss
from .treebank import Words, bucket, sentence_rows

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG")
BUCKETS = 20_000
FEATURES = 9

Tagged = tuple[list[str], list[str]]  # words and their tags


@dataclass(frozen=True)
class NamedEntities(Task):
    """A tagger of persons, places and organisations in short English sentences, trained on their tags.

    Its loss is the share of words with a wrong tag, so that estimators minimise risk; supervised estimators have losses of their own.
    Accuracy is the F1 of the spans of a whole split, structure quality the share of words with the right tag. After Mensch & Blondel 2018,
    section 5.1, on CoNLL-2003.

    Args:
        shortest, longest: words of a sentence. ``hidden``: size of the embeddings.
    """

    shortest: Count = 2
    longest: Count = 16
    hidden: Count = 24
    steps: Count = 300
    rates: Rates = (0.005, 0.01, 0.02)
    batch_size: Count = 16

    name: ClassVar[str] = "ner"
    summary: ClassVar[str] = "named entities with known tags"
    scored: ClassVar[str] = "span F1"
    references: ClassVar[tuple[str, ...]] = ("mensch2018differentiable",)
    structured: ClassVar[str] = "right tags"
    best: ClassVar[str] = "crf"
    files: ClassVar[tuple[str, ...]] = ("ner/en_ewt-uner-dev.iob2.gz", "ner/en_ewt-uner-test.iob2")
    family, kind, decoding = "treebank", "linear", "none"  # the sentences are those of the treebank
    oracle = LinearChain()

    def data(self, split: Split) -> Batch:
        return self.corpus()[split][1]

    def corpus(self) -> Mapping[Split, tuple[list[Tagged], Batch]]:
        """Sentences by split, as words and as tensors."""
        return _read(*self.paths(), self.shortest, self.longest)

    def modules(self) -> tuple[nn.Module, nn.Module]:
        words, unary = Words(BUCKETS, self.hidden), nn.Linear(self.hidden, len(TAGS))
        nn.init.normal_(words.weight, std=0.3)
        return Tagger(nn.Sequential(words, unary), len(TAGS)), nn.Identity()

    def loss(self, model: LatentModel, batch: Batch) -> TaskLoss:
        return TaskLoss(lambda z: 1 - _right(batch, z.sum(-2)), "wrong_tags", vertex_degree=1, extension="linear", gold=batch.gold)

    def judge(self, model: LatentModel, batch: Batch, structure: Tensor) -> Mapping[str, Tensor]:
        tags = LinearChain.tags(self.unpadded(batch, structure))
        found = [f1([true], [said]) for true, said in zip(_names(batch.labels), _names(tags), strict=True)]
        return {"accuracy": torch.tensor(found), "structure_accuracy": _right(batch, nn.functional.one_hot(tags, len(TAGS)).float())}

    @torch.no_grad()
    def evaluate(self, model: LatentModel, split: Split = "test") -> dict[str, float]:
        """Means as for every task, except F1, which is that of all spans together."""
        batch = self.data(split)
        scores = self.scores(model, batch)
        best = self.oracle.argmax(scores)
        points = {"accuracy": best, "relaxed_accuracy": self.oracle.marginals(scores)}
        found = {metric: f1(_names(batch.labels), _names(LinearChain.tags(point))) for metric, point in points.items()}
        return found | {"structure_accuracy": float(_right(batch, best.sum(-2)).double().mean())}

    def floor(self, seed: int) -> float:
        """Every word gets its most frequent tag in the training sentences; other words are no entities."""
        seen: dict[str, Counter[str]] = {}
        for sentence in self.corpus()["train"][0]:
            for word, tag in zip(*sentence, strict=True):
                seen.setdefault(word, Counter())[tag] += 1
        usual = {word: found.most_common(1)[0][0] for word, found in seen.items()}
        test = self.corpus()["test"][0]
        return f1([tags for _, tags in test], [[usual.get(word, "O") for word in words] for words, _ in test])


@functools.lru_cache(maxsize=4)
def _read(trained: Path, tested: Path, shortest: int, longest: int) -> Mapping[Split, tuple[list[Tagged], Batch]]:
    """Sentences by split, with ``shortest`` to ``longest`` words; a tenth of the training file is for validation."""
    # The rows of a file are number, word and tag.
    every, test = (
        [([row[1] for row in rows], [row[2] for row in rows]) for rows in sentence_rows(text_of(path)) if shortest <= len(rows) <= longest]
        for path in (trained, tested)
    )
    parts: dict[Split, list[Tagged]] = {"train": [one for i, one in enumerate(every) if i % 10], "validation": every[::10], "test": test}
    found: dict[Split, tuple[list[Tagged], Batch]] = {}
    for split, sentences in parts.items():
        features = torch.zeros(len(sentences), longest, FEATURES, dtype=torch.long)
        tags = torch.zeros(len(sentences), longest, dtype=torch.long)  # 0 in padding, as the oracle completes them
        for item, (words, names) in enumerate(sentences):
            features[item, : len(words)] = torch.tensor([[bucket(each, BUCKETS) for each in row] for row in features_of(words)])
            tags[item, : len(words)] = torch.tensor([TAGS.index(name) for name in names])
        lengths = torch.tensor([len(words) for words, _ in sentences])
        found[split] = sentences, Batch((features,), tags, lengths, LinearChain.structure(tags, len(TAGS), torch.float32))
    return found


def features_of(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Nine features of every word: the word, its beginning, end and shape, and some of its neighbours."""
    around = ["<s>", *words, "</s>"]
    for before, word, after in zip(around, words, around[2:], strict=False):
        yield (
            f"word={word}",
            f"lower={word.lower()}",
            f"begin={word[:3].lower()}",
            f"end={word[-3:].lower()}",
            f"shape={shape(word)}",
            f"before={before.lower()}",
            f"after={after.lower()}",
            f"shape before={shape(before)}",
            f"shape after={shape(after)}",
        )


def shape(word: str) -> str:
    """Runs of capitals, small letters, digits and other characters.

    Example:
        >>> shape("McDonald's-2")
        'XxXx-x-9'
    """
    kinds = ("X" if letter.isupper() else "x" if letter.isalpha() else "9" if letter.isdigit() else "-" for letter in word)
    return "".join(kind for kind, _ in itertools.groupby(kinds))


def _right(batch: Batch, tags: Tensor) -> Tensor:
    """``[..., b, n, t] -> [..., b]``: the share of words whose tag is the true one, linear in the weights of tags."""
    return batch.mean((tags * nn.functional.one_hot(batch.labels, len(TAGS))).sum(-1))


def _names(tags: Tensor) -> list[list[str]]:
    return [[TAGS[tag] for tag in row] for row in tags.tolist()]


def f1(true: Sequence[Sequence[str]], said: Sequence[Sequence[str]]) -> float:
    """The harmonic mean of precision and recall of the spans of all sentences together; 1 if there are none on both sides."""
    one, other = ({(item, span) for item, tags in enumerate(side) for span in spans(tags)} for side in (true, said))
    return 2 * len(one & other) / (len(one) + len(other)) if one or other else 1.0


def spans(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """Begin, end and kind of entities; one that begins without B counts, as in the evaluation of CoNLL-2003."""
    found, begin = set(), 0
    for place, (tag, following) in enumerate(itertools.pairwise([*tags, "O"])):
        mark, _, kind = tag.partition("-")
        if mark == "B" or (mark == "I" and (place == 0 or tags[place - 1][2:] != kind)):
            begin = place
        if mark != "O" and following != f"I-{kind}":
            found.add((begin, place + 1, kind))
    return found
