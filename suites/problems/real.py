"""Problems with the scores of real models, at stages of their training: the small sets, each item of which can be enumerated."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ...oracles import Alignment, Assignment, Categorical, Constituency, LinearChain, ProjectiveTree, ShiftReduce, SpanningTree, Subset
from ...oracles.dependency_tree import DependencyTree
from ..base import ProblemLoss
from .items import STAGES, FoundItems, number_of
from .losses import Downstream
from .score_files import Arrays


class RealItems(FoundItems):
    """Items of one of the score files.

    Attributes:
        stages: the stages of the file.
    """

    stages: ClassVar[tuple[str, ...]] = STAGES
    id_key: ClassVar[str] = "small_id"
    default_loss = "quadratic"

    def __init__(self, name: str, seed: int, file: str, arrays: Arrays) -> None:
        self.name, self.seed, self.arrays, self.source = name, seed, arrays, f"{file}.npz"

    def item_name(self, index: int) -> str:
        return str(self.array(self.id_key)[index])

    def lengths(self) -> np.ndarray:
        return self.array("small_length")

    def array(self, key: str) -> np.ndarray:
        """An array of the file."""
        if key not in self.arrays:
            stem = self.source.removesuffix(".npz")
            raise ValueError(f"{self.source}: holds no array {key!r}; expected the score file of {stem}, not another one of that name")
        return self.arrays[key]

    def double(self, key: str) -> Tensor:
        """An array of the file as float64."""
        return torch.from_numpy(self.array(key).astype(np.float64))

    def integers(self, key: str) -> Tensor:
        """An array of the file as int64."""
        return torch.from_numpy(self.array(key).astype(np.int64))

    def square(self, key: str, index: int, more: int = 0) -> Tensor:
        """The entries [size, size, ...] of an item, with ignored ones, which the files fill with -inf, at 0."""
        size = int(self.lengths()[index]) + more
        values = self.double(key)[index, :size, :size]
        return torch.where(self.oracle.read_mask(tuple(values.shape)), values, 0)


class Tagging(RealItems):
    """Sentences and their parts of speech or names: scores of a linear-chain CRF."""

    oracle = LinearChain()

    def scores(self, stage: str, index: int) -> Tensor:
        unary = self.double(f"small_unary_{stage}")[index, : self.lengths()[index]]
        transition, start, end = (self.double(f"{part}_{stage}") for part in ("transition", "start", "end"))
        return LinearChain.from_potentials(unary, transition, start=start, end=end)

    def gold(self, index: int) -> Tensor:
        tags = torch.from_numpy(self.array("small_gold_tags"))[index, : self.lengths()[index]]
        return LinearChain.structure(tags, len(self.array("tags")), torch.float64)


class SpokenSubset(RealItems):
    """Frames of a spoken digit that a classifier looks at, trained end to end."""

    oracle = Subset(3)
    default_loss = Downstream.name

    def scores(self, stage: str, index: int) -> Tensor:
        return self.double(f"small_score_{stage}")[index]

    def gold(self, index: int) -> Tensor:
        """A sample of the trained model, because the frames have no annotation."""
        return self.sampled(index, self.scores("final", index))

    def downstream(self, stage: str, index: int) -> ProblemLoss:
        weight, bias = self.double(f"small_clf_weight_{stage}"), self.double(f"small_clf_bias_{stage}")
        return Downstream(weight, bias, self.double("small_frames")[index], 3, int(self.array("small_label")[index]))


class SpokenDigitItems(RealItems):
    """Logits of a classifier of spoken digits."""

    id_key = "id"
    oracle = Categorical()
    default_loss = "mlp"

    def lengths(self) -> np.ndarray:
        return np.full(len(self.array("id")), 10)

    def scores(self, stage: str, index: int) -> Tensor:
        return self.double(f"logits_{stage}")[index]

    def gold(self, index: int) -> Tensor:
        return torch.nn.functional.one_hot(torch.tensor(int(self.array("gold")[index])), 10).double()


class Dependency(RealItems):
    """Arcs of a parser that was trained on trees with a single root."""

    oracle: DependencyTree = SpanningTree()

    def scores(self, stage: str, index: int) -> Tensor:
        return self.square(f"small_arc_{stage}", index, 1)

    def gold(self, index: int) -> Tensor:
        return self.oracle.structure(self.integers("small_gold_heads")[index, : self.lengths()[index]], torch.float64)


class ProjectiveDependency(Dependency):
    """Arcs of `Dependency` over projective trees, for the items whose gold tree is projective."""

    oracle = ProjectiveTree()

    def __init__(self, name: str, seed: int, file: str, arrays: Arrays) -> None:
        super().__init__(name, seed, file, arrays)
        keep = self.array("small_gold_projective")
        self.arrays = {key: value[keep] if key.startswith("small_") else value for key, value in arrays.items()}


class BinaryTrees(RealItems):
    """Spans of nested list operations, unlabelled; gold is the annotated tree, binarised to the right."""

    oracle = Constituency()

    def scores(self, stage: str, index: int) -> Tensor:
        return self.square(f"small_span_{stage}", index)

    def gold(self, index: int) -> Tensor:
        """The file leaves out the spans of one token, which are in every tree."""
        return self.square("small_gold_binary", index).fill_diagonal_(1)


class DerivationItems(RealItems):
    """Log-probabilities of the actions of a policy that builds such trees."""

    oracle = ShiftReduce("local")

    def scores(self, stage: str, index: int) -> Tensor:
        return self.square(f"small_action_{stage}", index, 1)

    def gold(self, index: int) -> Tensor:
        return ShiftReduce.structure(self.integers("small_gold_actions")[index, : 2 * self.lengths()[index] - 1], torch.float64)


class Assignments(RealItems):
    """Word alignments of sentences and their translations, with one-to-one links."""

    oracle = Assignment()

    def scores(self, stage: str, index: int) -> Tensor:
        return self.square(f"small_score_{stage}", index)

    def gold(self, index: int) -> Tensor:
        length = self.lengths()[index]
        return torch.nn.functional.one_hot(self.integers("small_gold_permutation")[index, :length], int(length)).double()


class SpeechAlignment(RealItems):
    """Two recordings of a digit: the scores are costs of cells, divided by −γ. No model was trained: a stage is a temperature, ``gamma=…``.

    Gold is the warping that made the second series out of the first. For two real recordings it is an exact sample at the lowest
    temperature, γ = 0.1.
    """

    oracle = Alignment()
    stages = ("gamma=1", "gamma=0.1")

    def lengths(self) -> np.ndarray:
        return np.asarray(self.array("small_length").sum(-1))

    def scores(self, stage: str, index: int) -> Tensor:
        return Alignment.from_costs(self._cut("small_cost", index), number_of(stage, "gamma") or 1.0)

    def gold(self, index: int) -> Tensor:
        if self.array("small_has_gold")[index]:
            return self._cut("small_gold_path", index)
        return self.sampled(index, self.scores(self.stages[-1], index))

    def _cut(self, key: str, index: int) -> Tensor:
        n, m = self.array("small_length")[index]
        return self.double(key)[index, :n, :m]


REAL: dict[str, tuple[str, str, type[RealItems]]] = {
    name: (name.removesuffix("_projective"), summary, kind)
    for name, summary, kind in (
        ("tagging_coarse5", "English sentences of 2 to 6 words, 5 coarse tags: scores of a linear-chain CRF", Tagging),
        ("tagging_upos17", "English sentences of 2 to 4 words, 17 parts of speech: scores of a linear-chain CRF", Tagging),
        ("tagging_ner_bio3", "sentences of 2 to 8 words, names as B, I, O: scores of a linear-chain CRF", Tagging),
        ("subset_fsdd_downstream", "3 of 12 frames of a spoken digit: scores and classifier of a model trained end to end", SpokenSubset),
        ("categorical_fsdd", "spoken digits: logits of a classifier of 10 classes", SpokenDigitItems),
        ("dependency_en_ewt", "English sentences of 2 to 6 words: arcs of a parser of single-root trees", Dependency),
        ("dependency_en_ewt_projective", "the same arcs over projective trees, where the gold tree is one", ProjectiveDependency),
        ("binary_trees_listops", "nested list operations of 4 to 8 tokens: spans of binary trees", BinaryTrees),
        ("shift_reduce_listops", "the same expressions: the policy of a shift-reduce parser", DerivationItems),
        ("assignment_alibi_fr_en", "3 to 7 words and their translations, French and English", Assignments),
        ("dtw_speech", "two recordings of a digit, 4 to 8 segments each: costs of alignments at two temperatures", SpeechAlignment),
    )
}
"""By name: the file without its suffix, one line, and the class that reads it."""
