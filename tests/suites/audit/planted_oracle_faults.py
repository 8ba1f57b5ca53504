"""One fault each, planted into an oracle that states its derivations: items of which no two neighbours are taken."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from structgrad.oracles import DEAD, UNIT, Builder, DerivedOracle
from structgrad.oracles.capabilities.projection import RowArgmax
from structgrad.oracles.derivations import Derivations


@dataclass(frozen=True)
class Apart(DerivedOracle):
    """No fault: event ``[n + 1]``, whose first entry is in no structure."""

    name: ClassVar[str] = "apart"
    event_ndim: ClassVar[int] = 1

    @classmethod
    def event_shape(cls, **sizes: int) -> tuple[int, ...]:
        return (cls._sizes(sizes, "length")[0] + 1,)

    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        builder = Builder(event_shape[0])
        out, taken = torch.tensor([UNIT]), torch.tensor([DEAD])
        for i in range(1, event_shape[0]):
            out, taken = self.rules(builder, out, taken, i)
        return builder.finish(self.end(builder, out, taken))

    def rules(self, builder: Builder, out: Tensor, taken: Tensor, i: int) -> tuple[Tensor, Tensor]:
        return builder.add(torch.stack([out, taken], 1)), builder.add(out.unsqueeze(1), torch.tensor([[i]]))

    def end(self, builder: Builder, out: Tensor, taken: Tensor) -> Tensor:
        return builder.add(torch.stack([out, taken], 1))

    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        if len(event_shape) != 1 or event_shape[0] < 2:
            raise ValueError(f"`{call}` got event shape {event_shape}; expected (n + 1,)")

    def length_limits(self, event_shape: tuple[int, ...]) -> tuple[int, ...]:
        return (event_shape[0] - 1,)

    def _inside(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        return torch.arange(event_shape[0]) <= lengths.unsqueeze(-1)

    def _completion(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        return torch.zeros(event_shape, dtype=torch.bool)

    def structures(self, event_shape: tuple[int, ...]) -> Iterator[Tensor]:
        for chosen in itertools.product((0.0, 1.0), repeat=event_shape[0] - 1):
            if not any(one and following for one, following in itertools.pairwise(chosen)):
                yield torch.tensor([0.0, *chosen])


class Neighbours(Apart):
    """A rule lets neighbours in."""

    def rules(self, builder: Builder, out: Tensor, taken: Tensor, i: int) -> tuple[Tensor, Tensor]:
        before = torch.stack([out, taken], 1)
        return builder.add(before), builder.add(before, torch.tensor([[i, i]]))


class NeverLast(Apart):
    """A rule is missing: the last item is never taken."""

    def end(self, builder: Builder, out: Tensor, taken: Tensor) -> Tensor:
        return builder.add(out.unsqueeze(1))


class TwoWays(Apart):
    """An ambiguous grammar: what ends without an item is reached twice."""

    def end(self, builder: Builder, out: Tensor, taken: Tensor) -> Tensor:
        return builder.add(torch.stack([out, taken, out], 1))


class PartTwice(Apart):
    """The first item is scored again by every other."""

    def rules(self, builder: Builder, out: Tensor, taken: Tensor, i: int) -> tuple[Tensor, Tensor]:
        out, one = super().rules(builder, out, taken, i)
        return out, builder.add(one.unsqueeze(1), torch.tensor([[1]]))


class ListedTwice(Apart):
    """The author's own list names a structure twice."""

    def structures(self, event_shape: tuple[int, ...]) -> Iterator[Tensor]:
        yield from super().structures(event_shape)
        yield torch.zeros(event_shape)


class MoreCounted(Apart):
    """Counts one too many."""

    def count(self, event_shape: tuple[int, ...]) -> int:
        return super().count(event_shape) + 1


class Raising(Apart):
    """The rules raise."""

    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        raise RuntimeError("planted")


class _InTorch(Apart):
    """The kernel of derivations would serve what is planted otherwise."""

    def _kernel(self, operation: str, rows: Tensor) -> Any:
        return None


class SecondBest(_InTorch):
    """Finds what is best without the first item."""

    def _argmax(self, rows: Tensor) -> Tensor:
        first = torch.arange(rows.shape[1]) == 1
        return super()._argmax(torch.where(first, -1e9, rows))


class NoStructure(_InTorch):
    """All items of positive scores, neighbours or not."""

    def _argmax(self, rows: Tensor) -> Tensor:
        return (rows > 0) & self.read_mask(tuple(rows.shape[1:]))


class PaddingRead(_InTorch):
    """Reads an entry that no structure has."""

    def read_mask(self, event_shape: tuple[int, ...], device: torch.device | None = None) -> Tensor:
        return torch.ones(event_shape, dtype=torch.bool, device=device)

    def _argmax(self, rows: Tensor) -> Tensor:
        return super()._argmax(rows + rows[:, :1])


class Doubled(_InTorch):
    """The log-partition of other scores."""

    def _value(self, rows: Tensor, maximum: Any) -> Tensor:
        return super()._value(rows, maximum) + 0.01


class Hot(_InTorch):
    """Marginals at another temperature."""

    def _reference_marginals(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return super()._reference_marginals(0.9 * rows)[0], super()._reference_marginals(rows)[1]


class Biased(_InTorch):
    """Samples whose uniforms are not uniform: wrong by 3 %."""

    def _sample(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        return super()._sample(rows, uniforms * 0.97)


class Unordered(_InTorch):
    """The k best from the last."""

    def _kbest(self, rows: Tensor, k: int) -> Tensor:
        return super()._kbest(rows, k).flip(0)


class Repeating(_InTorch):
    """The best k times."""

    def _kbest(self, rows: Tensor, k: int) -> Tensor:
        return super()._kbest(rows, 1).expand(k, *rows.shape)


class OtherRanks(_InTorch):
    """Ranks count from 1."""

    def _rank(self, structures: Tensor) -> Tensor:
        return super()._rank(structures) + 1


class Rounded(_InTorch):
    """The projection of scores that were rounded before."""

    def _project(self, rows: Tensor, argmax: RowArgmax, inside: Tensor | None, start: Any) -> Any:
        return super()._project(rows.round(decimals=1), argmax, inside, start)


class LengthsForgotten(_InTorch):
    """A shorter item has all parts."""

    def _inside(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        return torch.ones((*lengths.shape, *event_shape), dtype=torch.bool)
