"""ListOps by a shift-reduce parser, trained jointly with the composition along its actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ....oracles import ShiftReduce
from ....oracles.options import Count
from ..task import LatentModel
from .compositions import StackDecoder, derivations_of, spans_of
from .list_operations import PADDING
from .listops import VALUES, LineTask


@dataclass(frozen=True)
class ListOpsParser(LineTask):
    """A shift-reduce parser and the composition along its actions, trained jointly from the values of lines.

    Every state has its own policy. The scores of its actions depend on the tokens before and behind the last shift, the sum of those
    before, and the depth of the stack. `floor` also has left-branching trees.

    References:
        Havrylov, Kruszewski & Joulin 2019, "Cooperative learning of disjoint syntax and semantics".
    """

    steps: Count = 400

    name: ClassVar[str] = "listops_parser"
    summary: ClassVar[str] = "values of nested lists, by a shift-reduce parser and composition trained jointly"
    references: ClassVar[tuple[str, ...]] = ("nangia2018listops", "havrylov2019cooperative", "joulin2015inferring")

    @property
    def oracle(self) -> ShiftReduce:
        return ShiftReduce("local")

    def structures(self, spans: Tensor) -> Tensor:
        return derivations_of(spans)

    def spans(self, structures: Tensor) -> Tensor:
        return spans_of(structures).to(structures.dtype)

    def model(self, seed: int) -> LatentModel:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            scorer = StateScorer(PADDING + 1, self.longest, 16, 32)
            return LatentModel(scorer, StackDecoder(PADDING + 1, self.dimension, self.hidden, VALUES))


class StateScorer(nn.Module):
    """Scores of both actions after i shifts at depth d, by token i, the next one, the sum of the first i, and d.

    Args:
        tokens: how many kinds there are, the last for the ends of a line. ``length``: of lines, padded.
        dimension, hidden: of embeddings, and units.
    """

    def __init__(self, tokens: int, length: int, dimension: int, hidden: int) -> None:
        super().__init__()
        self.end, self.tokens, self.depths = tokens - 1, nn.Embedding(tokens, dimension), nn.Embedding(length + 1, hidden)
        self.state, self.score = nn.Linear(3 * dimension, hidden), nn.Linear(hidden, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """``[b, n] -> [b, n + 1, n + 1, 2]``."""
        known = self.tokens(pad(tokens, (1, 1), value=self.end))
        sums = pad(known[..., 1:-1, :].cumsum(-2), (0, 0, 1, 0))
        states = self.state(torch.cat([known[..., :-1, :], known[..., 1:, :], sums], -1))
        scores: Tensor = self.score((states.unsqueeze(-2) + self.depths.weight).relu())
        return scores
