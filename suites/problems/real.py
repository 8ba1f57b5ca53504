"""Problems with the scores of real models, at stages of their training: the small sets, each item of which can be enumerated."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ...oracles import Alignment, Assignment, Categorical, Constituency, LinearChain, ProjectiveTree, ShiftReduce, SpanningTree, Subset
from ..base import ProblemLoss
from .losses import Downstream
from .regimes import STAGES, FileItems, number_of
from .score_files import Arrays


class RealItems(FileItems):
    """Items of one of the score files; a ``layout`` gives other attributes than those of the class."""

    oracle: Any
    arrays: Arrays
    stages: ClassVar[tuple[str, ...]] = STAGES
    default_loss = "quadratic"
    id_key, length_key = "small_id", "small_length"  # all lengths are 1 without a key
    scores_key, gold_key = "", ""  # of scores without the stage, and of the indices of gold structures (`Oracle.dense`)
    keep_key = ""  # of a mask of the items that belong to the problem
    extra_rows = 0  # rows and columns of scores beyond the length of an item

    def __init__(self, name: str, seed: int, file: str, arrays: Arrays, layout: Mapping[str, Any]) -> None:
        vars(self).update(layout, name=name, seed=seed, arrays=arrays, source=f"{file}.npz")
        if self.keep_key:
            keep = self.array(self.keep_key)
            self.arrays = {key: value[keep] if key.startswith("small_") else value for key, value in arrays.items()}
        self.names = self.array(self.id_key)
        self.lengths = self.array(self.length_key) if self.length_key else np.ones(len(self.names), dtype=np.int64)

    def array(self, key: str) -> np.ndarray:
        """An array of the file."""
        if key not in self.arrays:
            stem = self.source.removesuffix(".npz")
            raise ValueError(f"{self.source}: holds no array {key!r}; expected the score file of {stem}, not another one of that name")
        return self.arrays[key]

    def double(self, key: str, *place: Any) -> Tensor:
        """A part of an array as float64."""
        return torch.from_numpy(np.asarray(self.array(key)[place], dtype=np.float64))

    def item_name(self, index: int) -> str:
        return str(self.names[index])

    def scores(self, index: int, stage: str) -> Tensor:
        """The entries [size, size, ...] of an item; ignored ones, which the files fill with -inf, are 0."""
        size = slice(self.lengths[index] + self.extra_rows)
        scores = self.double(f"{self.scores_key}_{stage}", index, *([size, size] if self.oracle.event_ndim > 1 else []))
        return torch.where(self.oracle.read_mask(tuple(scores.shape)), scores, 0)

    def gold(self, index: int) -> Tensor:
        event = tuple(self.scores(index, self.stages[-1]).shape)
        indices = self.double(self.gold_key, index, *map(slice, self.oracle.index_shape(event))).long()
        return self.oracle.dense(indices, event, dtype=torch.float64)  # type: ignore[no-any-return]


class Tagging(RealItems):
    """Sentences and their parts of speech or names: scores of a linear-chain CRF."""

    oracle, gold_key = LinearChain(), "small_gold_tags"

    def scores(self, index: int, stage: str) -> Tensor:
        unary = self.double(f"small_unary_{stage}", index, slice(self.lengths[index]))
        transition, start, end = (self.double(f"{part}_{stage}") for part in ("transition", "start", "end"))
        return LinearChain.from_potentials(unary, transition, start=start, end=end)


class SpokenSubset(RealItems):
    """Frames of a spoken digit that a classifier looks at, trained end to end."""

    oracle, scores_key = Subset(3), "small_score"
    default_loss = Downstream.name

    def gold(self, index: int) -> Tensor:
        """A sample of the trained model, because the frames have no annotation."""
        return self.sampled(index, self.scores(index, "final"))

    def downstream(self, index: int, stage: str) -> ProblemLoss:
        weight, bias = self.double(f"small_clf_weight_{stage}"), self.double(f"small_clf_bias_{stage}")
        return Downstream(weight, bias, self.double("small_frames", index), 3, int(self.array("small_label")[index]))


class BinaryTrees(RealItems):
    """Spans of nested list operations, unlabelled; gold is the annotated tree, binarised to the right."""

    oracle, scores_key = Constituency(), "small_span"

    def gold(self, index: int) -> Tensor:
        """The file leaves out the spans of one token, which are in every tree."""
        size = slice(self.lengths[index])
        return self.double("small_gold_binary", index, size, size).fill_diagonal_(1)


class SpeechAlignment(RealItems):
    """Two recordings of a digit: the scores are costs of cells, divided by −γ. No model was trained: a stage is a temperature, ``gamma=…``.

    Gold is the warping that made the second series out of the first. For two real recordings it is an exact sample at the lowest
    temperature, γ = 0.1.
    """

    oracle = Alignment()
    stages = ("gamma=1", "gamma=0.1")

    def scores(self, index: int, stage: str) -> Tensor:
        return Alignment.from_costs(self.double("small_cost", index, *map(slice, self.lengths[index])), number_of(stage, "gamma") or 1.0)

    def gold(self, index: int) -> Tensor:
        if self.array("small_has_gold")[index]:
            return self.double("small_gold_path", index, *map(slice, self.lengths[index]))
        return self.sampled(index, self.scores(index, self.stages[-1]))


_ARCS: dict[str, Any] = {"oracle": SpanningTree(), "scores_key": "small_arc", "gold_key": "small_gold_heads", "extra_rows": 1}
_DIGITS: dict[str, Any] = {"oracle": Categorical(), "id_key": "id", "length_key": "", "scores_key": "logits", "gold_key": "gold"}
_ACTIONS: dict[str, Any] = {"oracle": ShiftReduce("local"), "scores_key": "small_action", "gold_key": "small_gold_actions", "extra_rows": 1}
_LINKS: dict[str, Any] = {"oracle": Assignment(), "scores_key": "small_score", "gold_key": "small_gold_permutation"}
_PROJECTIVE = _ARCS | {"oracle": ProjectiveTree(), "keep_key": "small_gold_projective"}

# By name: the file without its suffix, one line, the class that reads it, and its layout.
REAL: dict[str, tuple[str, str, type[RealItems], dict[str, Any]]] = {
    name: (name.removesuffix("_projective"), summary, kind, layout)
    for name, summary, kind, layout in (
        ("tagging_coarse5", "English sentences of 2 to 6 words, 5 coarse tags: scores of a linear-chain CRF", Tagging, {}),
        ("tagging_upos17", "English sentences of 2 to 4 words, 17 parts of speech: scores of a linear-chain CRF", Tagging, {}),
        ("tagging_ner_bio3", "sentences of 2 to 8 words, names as B, I, O: scores of a linear-chain CRF", Tagging, {}),
        (
            "subset_fsdd_downstream",
            "3 of 12 frames of a spoken digit: scores and classifier of a model trained end to end",
            SpokenSubset,
            {},
        ),
        ("categorical_fsdd", "spoken digits: logits of a classifier of 10 classes", RealItems, _DIGITS | {"default_loss": "mlp"}),
        ("dependency_en_ewt", "English sentences of 2 to 6 words: arcs of a parser of single-root trees", RealItems, _ARCS),
        ("dependency_en_ewt_projective", "the same arcs over projective trees, where the gold tree is one", RealItems, _PROJECTIVE),
        ("binary_trees_listops", "nested list operations of 4 to 8 tokens: spans of binary trees", BinaryTrees, {}),
        ("shift_reduce_listops", "the same expressions: the policy of a shift-reduce parser", RealItems, _ACTIONS),
        ("assignment_alibi_fr_en", "3 to 7 words and their translations, French and English", RealItems, _LINKS),
        ("dtw_speech", "two recordings of a digit, 4 to 8 segments each: costs of alignments at two temperatures", SpeechAlignment, {}),
    )
}
