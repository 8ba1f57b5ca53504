"""Projective dependency trees with labels on their arcs."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..capabilities.indices import NONE, chosen, placed
from ..dependency_tree import WordTrees
from ..derivations import Derivations, DerivedOracle, Examples
from ..projective_tree import eisner
from ..tensor_kinds import inside_lengths, labels_below


@dataclass(frozen=True)
class LabelledProjectiveTree(WordTrees, DerivedOracle):
    """Labelled dependency trees without crossing arcs: event ``[n + 1, n + 1, t]``.

    ``scores[..., h, m, c]`` scores the arc from head h to modifier m with label c. Index 0 is the root, words are 1..n; every word has one
    head and one label. Column 0 and the diagonal are no arcs, and are ignored. ``lengths`` counts words. Indices ``[n]`` are ``h t + c`` of
    the words. Trees are those of `ProjectiveTree`, in the same order, then by label. O(n³ + n² t).

    For trees that may cross, give `SpanningTree` the log-sum-exp of the scores over labels; given its arcs, labels are independent.

    Args:
        single_root: exactly one word is headed by the root; with False, any number of words.

    References:
        Eisner 1996, "Three new probabilistic models for dependency parsing", section 3; Dozat & Manning 2017, "Deep biaffine attention for
        neural dependency parsing".

    Example:
        >>> oracle, scores = LabelledProjectiveTree(), torch.zeros(3, 3, 2)
        >>> scores[2, 1, 1] = 1.0  # word 1 hangs on word 2, with label 1
        >>> heads, labels = LabelledProjectiveTree.heads(oracle.argmax(scores))
        >>> heads, labels
        (tensor([2, 0]), tensor([1, 0]))
        >>> oracle.count((3, 3, 2))
        8
    """

    name: ClassVar[str] = "labelled_projective_tree"
    event_ndim: ClassVar[int] = 3
    layout: ClassVar[str] = "Dependency-tree scores have an extra row and column for the root: [*batch, n + 1, n + 1, t]"
    size_names: ClassVar[tuple[str, ...]] = ("length", "tags")
    references: ClassVar[tuple[str, ...]] = ("eisner1996three", "dozat2017deep")
    examples: ClassVar[Examples] = Examples(small=((3, 2), (4, 2), (4, 3)), usual=(10, 8), like="projective_tree", counted="words")

    @classmethod
    def event_shape(cls, **sizes: int) -> tuple[int, ...]:
        length, labels = cls._sizes(sizes, *cls.size_names)
        return (length + 1, length + 1, labels)

    @classmethod
    def structure(
        cls, heads: Tensor, labels: Tensor, num_labels: int, dtype: torch.dtype | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        """Heads and labels ``[*batch, n]`` of the words 1..n to structures ``[*batch, n + 1, n + 1, t]``; the inverse of `heads`.

        Words beyond ``lengths`` have no arc, whatever padding heads and labels have there, such as -100.
        """
        size, inside = heads.shape[-1] + 1, inside_lengths("structure", lengths, heads.shape[-1])
        arcs = labels_below("structure", "heads", heads, size, inside) * num_labels + labels_below(
            "structure", "labels", labels, num_labels, inside
        )
        one = torch.nn.functional.one_hot(arcs, size * num_labels)
        one = (one if inside is None else one * inside.unsqueeze(-1)).unflatten(-1, (size, num_labels)).movedim(-3, -2)
        return torch.nn.functional.pad(one, (0, 0, 1, 0)).to(dtype or torch.get_default_dtype())

    @classmethod
    def heads(cls, structure: Tensor) -> tuple[Tensor, Tensor]:
        """Head and label of each word 1..n, 0 for the root: ``[*batch, n]`` each, of structures ``[*batch, n + 1, n + 1, t]``."""
        best = structure[..., 1:, :].movedim(-2, -3).flatten(-2).to(torch.uint8).argmax(-1)
        return best // structure.shape[-1], best % structure.shape[-1]

    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        size, _, labels = event_shape
        return eisner(torch.arange(size * size * labels).reshape(event_shape), single_root=self.single_root)

    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        if len(event_shape) != 3 or event_shape[0] != event_shape[1] or event_shape[0] < 2:
            raise ValueError(
                f"`{call}` got event shape {event_shape}; expected (n + 1, n + 1, t) for n >= 1 words, with the root at index 0"
            )

    def _index_limit(self, event_shape: tuple[int, ...]) -> int:
        return event_shape[0] * event_shape[2]

    def _parts(self, indices: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        size, _, labels = event_shape
        arc = indices // labels * size + torch.arange(1, size, device=indices.device)
        return torch.where(indices < 0, NONE, arc * labels + indices % labels)

    def _from_parts(self, parts: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        size, _, labels = event_shape
        head, word = parts // (size * labels), parts // labels % size
        return placed(head * labels + parts % labels, torch.where(parts < 0, size, word - 1), size - 1)

    def _indices_of(self, structures: Tensor) -> Tensor:
        return chosen(structures[..., 1:, :].movedim(-2, -3).flatten(-2), -1)

    def _completion(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """The arcs in the padding have label 0."""
        return super()._completion(event_shape, lengths) & (torch.arange(event_shape[2], device=lengths.device) == 0)
