"""One fault each, planted into an oracle that states its derivations: items of which no two neighbours are taken."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from structgrad.oracles import DEAD, UNIT, Builder, DerivedOracle
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


def fault(name: str, base: type = Apart, **methods: Any) -> type[Apart]:
    """The oracle with other methods."""
    return dataclass(frozen=True)(type(name, (base,), methods))


def neighbours(self: Any, builder: Builder, out: Tensor, taken: Tensor, i: int) -> tuple[Tensor, Tensor]:
    before = torch.stack([out, taken], 1)
    return builder.add(before), builder.add(before, torch.tensor([[i, i]]))


def first_twice(self: Any, builder: Builder, out: Tensor, taken: Tensor, i: int) -> tuple[Tensor, Tensor]:
    out, one = Apart.rules(self, builder, out, taken, i)
    return out, builder.add(one.unsqueeze(1), torch.tensor([[1]]))


def listed_twice(self: Any, event_shape: tuple[int, ...]) -> Iterator[Tensor]:
    yield from Apart.structures(self, event_shape)
    yield torch.zeros(event_shape)


def planted(self: Any, event_shape: tuple[int, ...]) -> Derivations:
    raise RuntimeError("planted")


def in_torch(name: str, **methods: Any) -> type[Apart]:
    """A fault of an operation in torch: no kernel of derivations replaces it."""
    return fault(name, _kernel=lambda self, operation, rows: None, **methods)


Raising = fault("Raising", derivations=planted)

FAULTS: tuple[type[Apart], ...] = (
    fault("Neighbours", rules=neighbours),
    fault("NeverLast", end=lambda self, b, out, taken: b.add(out.unsqueeze(1))),
    fault("TwoWays", end=lambda self, b, out, taken: b.add(torch.stack([out, taken, out], 1))),
    fault("PartTwice", rules=first_twice),
    fault("ListedTwice", structures=listed_twice),
    fault("MoreCounted", count=lambda self, event: Apart.count(self, event) + 1),
    in_torch("SecondBest", _argmax=lambda self, rows: Apart._argmax(self, torch.where(torch.arange(rows.shape[1]) == 1, -1e9, rows))),
    in_torch("NoStructure", _argmax=lambda self, rows: (rows > 0) & self.read_mask(tuple(rows.shape[1:]))),
    in_torch(
        "PaddingRead",
        read_mask=lambda self, event, device=None: torch.ones(event, dtype=torch.bool, device=device),
        _argmax=lambda self, rows: Apart._argmax(self, rows + rows[:, :1]),
    ),
    in_torch("Doubled", _value=lambda self, rows, maximum: Apart._value(self, rows, maximum) + 0.01),
    fault("Wider", log_partition=lambda self, *given: Apart.log_partition(self, *given).unsqueeze(-1)),
    fault("Wide", log_partition=lambda self, *given: torch.zeros(len(given[0]), 2)),
    in_torch(
        "Hot",
        _reference_marginals=lambda self, rows: (
            Apart._reference_marginals(self, 0.9 * rows)[0],
            Apart._reference_marginals(self, rows)[1],
        ),
    ),
    in_torch("Biased", _sample=lambda self, rows, uniforms: Apart._sample(self, rows, uniforms * 0.97)),
    in_torch("Unordered", _kbest=lambda self, rows, k: Apart._kbest(self, rows, k).flip(0)),
    in_torch("Repeating", _kbest=lambda self, rows, k: Apart._kbest(self, rows, 1).expand(k, *rows.shape)),
    in_torch("OtherRanks", _rank=lambda self, structures: Apart._rank(self, structures) + 1),
    in_torch("Rounded", _project=lambda self, rows, *given: Apart._project(self, rows.round(decimals=1), *given)),
    fault(
        "EndForgotten",
        argmax=lambda self, scores, lengths=None: Apart.argmax(
            self,
            scores,
            lengths=None if lengths is None else torch.where(lengths < scores.shape[-1] - 1, (lengths - 1).clamp(min=1), lengths),
        ),
    ),
    fault(
        "Single",
        marginals=lambda self, scores, **given: Apart.marginals(self, scores, **given) * (0.5 if scores.dtype == torch.float32 else 1),
    ),
    fault(
        "Outside",
        relax=lambda self, scores, kind="entropy", **given: Apart.relax(self, scores, kind, **given) * (1 if kind == "entropy" else 1.5),
    ),
    in_torch("LengthsForgotten", _inside=lambda self, event, lengths: torch.ones((*lengths.shape, *event), dtype=torch.bool)),
)
"""One broken law each; `tests/goldens/audit.json` has them with the detail of each violation."""

LAWS = {
    "argmax", "count", "derivations", "enumeration", "float32", "ignored entries", "k best", "lengths", "projection", "relaxation",
    "samples", "sums",
}  # fmt: skip
"""All that are broken."""
