"""Subsets with a score for their size."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..derivations import Builder, Derivations, DerivedOracle, Examples
from ..options import Count
from ..subset.oracle import selections


@dataclass(frozen=True)
class CardinalitySubset(DerivedOracle):
    """Subsets of n parts, with a score for the number of parts: event ``[n + 1, 2]``.

    ``scores[..., i, 0]`` scores part i, and ``scores[..., c, 1]`` (a cardinality potential) that c parts are taken, 0 to n. The last entry
    of column 0 is ignored. Marginals hold the probability of each part and of each size. `from_sizes` lets every item of a batch ask for
    another size: exactly k, at most k, at least one. An item of 0 parts has the empty subset alone, and log-partition 0. ``lengths`` counts
    parts. Ties go to fewer parts, then to the first ones. O(n min(n, most)).

    Args:
        most: the greatest number of parts that any item takes; entries of larger sizes are ignored. None for all n.

    References:
        Tarlow et al. 2012, "Fast exact inference for recursive cardinality models"; Swersky et al. 2012, "Cardinality restricted Boltzmann
        machines".

    Example:
        >>> oracle, scores = CardinalitySubset(), CardinalitySubset.from_sizes(torch.zeros(3, 4), torch.tensor([0, 1, 2]))
        >>> oracle.log_partition(scores).exp()
        tensor([1., 4., 6.])
        >>> oracle.marginals(scores)[..., :-1, 0]
        tensor([[0.0000, 0.0000, 0.0000, 0.0000],
                [0.2500, 0.2500, 0.2500, 0.2500],
                [0.5000, 0.5000, 0.5000, 0.5000]])
        >>> oracle.marginals(CardinalitySubset.from_sizes(torch.zeros(2), 1, 2))[:, 1]  # of 0, 1 and 2 parts
        tensor([0.0000, 0.6667, 0.3333])
    """

    most: Count | None = None

    name: ClassVar[str] = "cardinality_subset"
    event_ndim: ClassVar[int] = 2
    layout: ClassVar[str] = "Scores of n parts have a line for every size from 0 to n: [*batch, n + 1, 2]"
    size_names: ClassVar[tuple[str, ...]] = ("length",)
    references: ClassVar[tuple[str, ...]] = ("tarlow2012fast", "swersky2012cardinality")
    examples: ClassVar[Examples] = Examples(small=((7,), (8,), (9,)), usual=(20,), like="subset", counted="parts")

    @classmethod
    def event_shape(cls, **sizes: int) -> tuple[int, ...]:
        return (cls._sizes(sizes, *cls.size_names)[0] + 1, 2)

    @classmethod
    def from_potentials(cls, parts: Tensor, sizes: Tensor) -> Tensor:
        """Scores ``[*batch, n + 1, 2]`` of parts ``[*batch?, n]`` and of sizes ``[*batch?, m + 1]``, 0 to m <= n; differentiable in both.

        Larger sizes are forbidden.
        """
        beyond = parts.shape[-1] + 1 - sizes.shape[-1] if parts.ndim and sizes.ndim else -1
        if beyond < 0:
            raise ValueError(
                f"`from_potentials` got parts of shape {tuple(parts.shape)} and sizes of shape {tuple(sizes.shape)}; expected [*batch?, n] "
                "and [*batch?, m + 1] for 0 to m <= n parts"
            )
        both = torch.broadcast_tensors(pad(parts, (0, 1)), pad(sizes.to(parts), (0, beyond), value=-math.inf))
        return torch.stack(both, -1)

    @classmethod
    def from_sizes(cls, parts: Tensor, least: Tensor | int, most: Tensor | int | None = None) -> Tensor:
        """Scores ``[*batch, n + 1, 2]`` that allow ``least`` to ``most`` parts, and score the parts alone.

        Args:
            parts: [*batch?, n].
            least: integers [*batch?], or one for all.
            most: integers [*batch?], or one for all; None for exactly ``least`` parts.
        """
        if not parts.is_floating_point():
            raise ValueError(f"`from_sizes` got parts of {parts.dtype}; expected floating-point scores: take parts.float()")
        low, high = (torch.as_tensor(bound, device=parts.device).unsqueeze(-1) for bound in (least, least if most is None else most))
        size = torch.arange(parts.shape[-1] + 1, device=parts.device)
        return cls.from_potentials(parts, torch.where((low <= size) & (size <= high), 0.0, -math.inf))

    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        """The selections of each size, below one node of all."""
        size = event_shape[0] - 1
        most, entries = min(size, self.most or size), torch.arange(2 * size + 2).reshape(event_shape)
        # Each part counts 1, and each size as many as it lacks.
        builder = Builder(entries.numel(), torch.stack([torch.ones(size + 1, dtype=torch.int64), torch.arange(size, -1, -1)], 1).flatten())
        nodes = selections(builder, entries[:-1, 0], 1, most)
        return builder.finish(builder.add(nodes.unsqueeze(0), entries[: most + 1, 1].unsqueeze(0)))

    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        if len(event_shape) != 2 or event_shape[0] < 2 or event_shape[1] != 2:
            raise ValueError(f"`{call}` got event shape {event_shape}; expected (n + 1, 2) for n parts, and sizes from 0 to n")

    def length_limits(self, event_shape: tuple[int, ...]) -> tuple[int, ...]:
        return (event_shape[0] - 1,)

    def _inside(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """Its parts, and the sizes from 0 to their number; nothing of an item without parts."""
        (line, column), number = (torch.arange(size, device=lengths.device) for size in event_shape), lengths.unsqueeze(-1).unsqueeze(-1)
        return (line.unsqueeze(-1) < number + column) & (number > 0)

    def _completion(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """Nothing beyond an item is taken: 0 parts of an item without any."""
        return torch.arange(math.prod(event_shape), device=lengths.device).reshape(event_shape) == 1
