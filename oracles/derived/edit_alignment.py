"""Edits of one string into another, with affine costs of gaps."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..derivations import DEAD, UNIT, Builder, Derivations, DerivedOracle, Examples
from ..tensor_kinds import inside_lengths, labels_below


@dataclass(frozen=True)
class EditAlignment(DerivedOracle):
    """Alignments of n and m symbols with gaps: event ``[n + 1, m + 1, 5]``.

    ``scores[..., i, j, a]`` scores an action that ends after i symbols of the first string and j of the second: 0 matches the two symbols
    before; 1 deletes one of the first string and 2 goes on deleting; 3 inserts one of the second and 4 goes on inserting. Entries of no
    alignment are ignored; lengths are those of both strings. Ties go to a match before a deletion before an insertion, from the end. O(n
    m). `from_potentials` and `from_symbols` make the scores from those of symbols, differentiably.

    References:
        Gotoh 1982, "An improved algorithm for matching biological sequences"; Durbin et al. 1998, "Biological sequence analysis", 2.3.

    Example:
        >>> oracle, scores = EditAlignment(), torch.tensor([0.0, -2.0, -0.5, -2.0, -0.5]).expand(3, 5, 5).clone()
        >>> scores[1, 1, 0] = scores[2, 4, 0] = 3.0
        >>> oracle.argmax(scores).nonzero().tolist(), oracle.count((3, 5, 5))
        ([[1, 1, 0], [1, 2, 3], [1, 3, 4], [2, 4, 0]], 41)
    """

    name: ClassVar[str] = "edit_alignment"
    event_ndim: ClassVar[int] = 3
    layout: ClassVar[str] = "Scores of edits have an extra row and column for the start: [*batch, n + 1, m + 1, 5]"
    size_names: ClassVar[tuple[str, ...]] = ("rows", "columns")
    references: ClassVar[tuple[str, ...]] = ("gotoh1982improved", "durbin1998biological", "ristad1998learning")
    examples: ClassVar[Examples] = Examples(
        small=((4, 4), (4, 5), (5, 5), (6, 6)), usual=(32, 32), like="alignment", counted="symbols of both strings"
    )

    @classmethod
    def event_shape(cls, **sizes: int) -> tuple[int, ...]:
        rows, columns = cls._sizes(sizes, *cls.size_names)
        return (rows + 1, columns + 1, 5)

    @classmethod
    def from_potentials(cls, match: Tensor, delete: Tensor, insert: Tensor, opening: Tensor | float = 0.0) -> Tensor:
        """Scores ``[*batch, n + 1, m + 1, 5]`` from scores of symbols at their places; differentiable in all of them.

        Args:
            match: [*batch, n, m], of two symbols that are matched.
            delete: [*batch?, n], of a symbol of the first string that is deleted.
            insert: [*batch?, m], of a symbol of the second string that is inserted.
            opening: [*batch?], added for every run of deletions and every run of insertions; 0 makes costs of gaps linear.

        Example:
            >>> match, one = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.full((2,), -1.0, requires_grad=True)
            >>> scores = EditAlignment.from_potentials(match, one, one, opening=-0.5)
            >>> EditAlignment().argmax(scores).nonzero().tolist()
            [[1, 1, 0], [2, 2, 0]]
        """
        if match.ndim < 2:
            raise ValueError(f"`from_potentials` got match of shape {tuple(match.shape)}; expected [*batch, n, m]")
        rows, columns = match.shape[-2:]
        for name, gap, size in (("delete", delete, rows), ("insert", insert, columns)):
            if tuple(gap.shape[-1:]) != (size,):
                raise ValueError(f"`from_potentials` got {name} of shape {tuple(gap.shape)}; expected (..., {size})")
        event = (*match.shape[:-2], rows + 1, columns + 1)
        opens = torch.as_tensor(opening, dtype=match.dtype, device=match.device).unsqueeze(-1).unsqueeze(-1)
        deletes = pad(delete, (1, 0)).unsqueeze(-1).expand(event)
        inserts = pad(insert, (1, 0)).unsqueeze(-2).expand(event)
        return torch.stack([pad(match, (1, 0, 1, 0)), deletes + opens, deletes, inserts + opens, inserts], -1)

    @classmethod
    def from_symbols(  # noqa: PLR0913, PLR0917 - scores of as many kinds as there are edits
        cls,
        strings: tuple[Tensor, Tensor],
        substitution: Tensor,
        deletion: Tensor,
        insertion: Tensor,
        opening: Tensor | float = 0.0,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """Scores ``[*batch, n + 1, m + 1, 5]`` of two strings from scores of symbols, such as a learnable edit distance has.

        Args:
            strings: integers [*batch, n] and [*batch, m], numbers of symbols.
            substitution: [v, v], of matching a symbol of the first string with one of the second.
            deletion: [v], of a symbol of the first string.
            insertion: [v], of a symbol of the second string.
            opening: [], added for every run of deletions and every run of insertions.
            lengths: int [*batch, 2], of both strings as operations take them; symbols beyond may be any padding, such as -100.

        References:
            Ristad & Yianilos 1998, "Learning string-edit distance", section 2.

        Example:
            >>> costs = torch.eye(3).requires_grad_()
            >>> scores = EditAlignment.from_symbols((torch.tensor([0, 1]), torch.tensor([0, 2, 1])), costs, -torch.ones(3), -torch.ones(3))
            >>> torch.autograd.grad(EditAlignment().log_partition(scores), costs)[0]  # expected numbers of matches, by symbols
            tensor([[0.6995, 0.0084, 0.1865],
                    [0.0084, 0.6995, 0.1865],
                    [0.0000, 0.0000, 0.0000]])
        """
        first, second = strings
        if tuple(substitution.shape) != (len(deletion), len(insertion)):
            raise ValueError(
                f"`from_symbols` got a substitution of shape {tuple(substitution.shape)}; expected ({len(deletion)}, {len(insertion)}), as "
                "many symbols as deletion and insertion have"
            )
        each = (None, None) if lengths is None else lengths.unbind(-1)
        first, second = (
            labels_below("from_symbols", "strings", string, len(symbols), inside_lengths("from_symbols", length, string.shape[-1]))
            for string, symbols, length in zip((first, second), (deletion, insertion), each, strict=True)
        )
        match = substitution[first.unsqueeze(-1), second.unsqueeze(-2)]
        return cls.from_potentials(match, deletion[first], insertion[second], opening)

    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        """Three nodes per cell, by the last action: a match, a deletion, an insertion."""
        rows, columns, _ = event_shape
        parts = torch.arange(rows * columns * 5).reshape(event_shape)
        builder = Builder(parts.numel())
        # One row and one column before the first; where nothing is aligned yet, as after a match.
        nodes = torch.full((rows + 1, columns + 1, 3), DEAD)
        nodes[1, 1, 0] = UNIT
        for diagonal in range(1, rows + columns - 1):
            i = torch.arange(max(0, diagonal - columns + 1), min(rows, diagonal + 1))
            j = diagonal - i
            first = torch.cat([nodes[i, j], nodes[i, j + 1], nodes[i + 1, j]])
            taken = [parts[i, j][:, action] for action in ([0, 0, 0], [1, 2, 1], [3, 3, 4])]
            nodes[i + 1, j + 1] = builder.add(first, torch.cat(taken)).reshape(3, -1).mT
        return builder.finish(builder.add(nodes[-1, -1].unsqueeze(0)))

    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        if len(event_shape) != 3 or min(event_shape) < 2 or event_shape[2] != 5:
            raise ValueError(f"`{call}` got event shape {event_shape}; expected (n + 1, m + 1, 5) for n and m symbols, each at least 1")

    def length_limits(self, event_shape: tuple[int, ...]) -> tuple[int, ...]:
        return (event_shape[0] - 1, event_shape[1] - 1)

    def _inside(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        i, j, _, n, m = _places(event_shape, lengths)
        return (i <= n) & (j <= m)

    def _completion(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """Deletions and then insertions to the end, which go on with one that the item ends in."""
        i, j, action, n, m = _places(event_shape, lengths)
        deletes = (j == m) & (i > n) & ((action == 2) | ((action == 1) & (i == n + 1)))
        inserts = (i == event_shape[0] - 1) & (j > m) & ((action == 4) | ((action == 3) & (j == m + 1)))
        return deletes | inserts


def _places(event_shape: tuple[int, ...], lengths: Tensor) -> tuple[Tensor, ...]:
    i, j, action = (torch.arange(size, device=lengths.device) for size in event_shape)
    return i.reshape(-1, 1, 1), j.reshape(-1, 1), action, *lengths.unsqueeze(-1).unsqueeze(-1).unsqueeze(-1).unbind(-4)
