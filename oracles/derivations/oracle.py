"""An oracle from a hypergraph of derivations alone."""

import abc
import math
from functools import lru_cache
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from .. import kernels
from ..capabilities import DistinctSamplingOracle, DrawnSet, EnumerableOracle, KBestOracle, ProjectionOracle, RelaxedOracle
from ..capabilities.marginals import ExactLaw
from ..capabilities.relaxation import Maximum
from ..numerics import in_double, made_once
from ..transforms import operation, uncompiled, untraced
from . import algorithms, executor
from .examples import Examples
from .hypergraph import Derivations
from .law import EdgeLaw
from .packing import STEPS, Packed, Ranking, pack, ranking
from .tables import Tables, tables_of


class DerivedOracle(RelaxedOracle, DistinctSamplingOracle, ProjectionOracle, EnumerableOracle, KBestOracle):
    """An oracle that states how its structures are derived, and has every operation by that.

    On the CPU the one compiled executor computes `executor.OPERATIONS`, where the structure has no kernel of its own for that. The k best,
    structures of ranks and samples without replacement are computed by it on the CPU for every device.

    A subclass is a frozen dataclass of options with ``name``, and states

    * ``axes``, the names of the sizes along the event: ``("length", "tags", "tags")`` is an event ``[n, t, t]``, and refuses others. Where
      sizes are no plain axes, it has ``event_ndim``, ``size_names``, `event_shape` and `_check_event` instead;
    * `derivations`, the hypergraph of an event shape. Every structure has exactly one derivation, takes each of its parts once, and comes
      through no node twice; `structgrad.oracles.derivations.walked` lists them all, to check that on small events;
    * `binary_mask`, where a part may be taken several times: which parts are 0/1. The others are counted, as is a score that rules at
      many places share. Parts that are 0/1 must tell all structures apart.

    Parts of no structure are ignored entries. Ties go to the edge that comes first, and structures are enumerated by the edge of the root,
    then by its first node, then by its second. A sample takes one uniform for each node of its derivation, in preorder, but for one that
    is made of nothing in one way. Everything takes time in proportion to the edges, but for derivatives of relaxed recursions and third
    ones, which take it for every level. A hypergraph is built once for each event shape.

    **Lengths.** Two more methods, where items may be shorter than the event: `_inside` says which parts some structure of an item has
    (those at the first positions of the first axis, where not overridden), and `_completion` which parts beyond them go on. These must hold
    exactly one way to complete every structure of the item to one of the whole event. Where no mask says that, override `_complete`, whose
    event may grow; and `length_limits`, where lengths do not count the first axis. Parts that are in some structure of an item, but in
    none of the whole event, are said by `_parts_inside`.

    **Examples.** ``examples`` says at which sizes suites list, draw and time a structure that ships with the package; defaults follow from
    the axes.

    References:
        Goodman 1999, "Semiring parsing"; Klein & Manning 2001, "Parsing and hypergraphs".

    Example:
        >>> from dataclasses import dataclass
        >>> from structgrad.oracles import DEAD, UNIT, Builder
        >>> @dataclass(frozen=True)
        ... class Apart(DerivedOracle):
        ...     '''Subsets of n items without two neighbours.'''
        ...     name = "apart"
        ...     axes = ("length",)
        ...     def derivations(self, event_shape):
        ...         builder = Builder(event_shape[0])
        ...         out, taken = torch.tensor([UNIT]), torch.tensor([DEAD])
        ...         for i in range(event_shape[0]):
        ...             either = torch.stack([out, taken], 1)  # item i stays out, after either
        ...             out, taken = builder.add(either), builder.add(out.unsqueeze(1), torch.tensor([[i]]))
        ...         return builder.finish(builder.add(torch.stack([out, taken], 1)))
        >>> oracle, scores = Apart(), torch.tensor([1.0, 1.5, 1.0, -1.0])
        >>> oracle.argmax(scores), oracle.count((4,))
        (tensor([1., 0., 1., 0.]), 8)
        >>> oracle.marginals(scores)
        tensor([0.5209, 0.2875, 0.4740, 0.1415])
    """

    kernel: ClassVar[str | None] = "derivations"
    examples: ClassVar[Examples] = Examples()
    _ignores_entries: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.size_names:
            cls.examples = cls.examples.filled(cls.size_names)

    @abc.abstractmethod
    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        """The hypergraph whose parts are the entries of an event, in row-major order."""

    @classmethod
    def event_of(cls, size: tuple[int, ...]) -> tuple[int, ...]:
        """The event shape of a size such as `examples` holds, in the order of ``size_names``."""
        return cls.event_shape(**dict(zip(cls.size_names, size, strict=True)))

    def count(self, event_shape: tuple[int, ...]) -> int:
        return _count(self, tuple(event_shape))

    def read_mask(self, event_shape: tuple[int, ...], device: torch.device | None = None) -> Tensor:
        if not self._ignores_entries:
            return super().read_mask(event_shape, device)
        return self._tables(event_shape, device).read.reshape(event_shape).clone()

    def _most_parts(self, event_shape: tuple[int, ...]) -> int:
        return _longest(self, tuple(event_shape))

    def _completion(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        raise ValueError(f"got lengths for the oracle {self.name}, which has none; implement `_completion`, or cut the scores")

    def _select(self, operation: str, rows: Tensor) -> kernels.Kernel | None:
        own = super()._select(operation, rows)
        if own is not None or operation.removesuffix("_parts") not in executor.OPERATIONS:
            return own
        return executor.kernel(_packed(self, tuple(rows.shape[1:])), operation, len(rows))

    @final
    @operation(gives="event")
    def max_marginals(self, scores: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """The score of the best structure that has each part: ``[*batch, *event]``, -inf for a part that none has; without gradients.

        The greatest of them is the score of the MAP structure; how much less a part has says what it costs to insist on it. -inf
        beyond an item's length too. Time and memory in proportion to the edges, in batched torch.

        References:
            Wainwright & Jordan 2008, "Graphical models, exponential families, and variational inference", section 8.1.

        Example:
            >>> from structgrad.oracles import LinearChain
            >>> LinearChain().max_marginals(torch.tensor([[[0.0, 2.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 0.5]]]))
            tensor([[[1.0000, 2.5000],
                     [  -inf,   -inf]],
            <BLANKLINE>
                    [[1.0000, 0.0000],
                     [2.0000, 2.5000]]])
        """
        parameters, inside = self._parameters("max_marginals", scores, lengths)

        def best(rows: Tensor) -> tuple[Tensor]:
            flat = in_double(self._cleaned(rows)).flatten(1)
            return (algorithms.max_marginals(self._tables_for(rows), flat).reshape(rows.shape),)

        found = self._cut(self._run("max_marginals", parameters, (None,), best)[0], inside, scores.dtype)
        return found if inside is None else torch.where(inside, found, -math.inf)

    # The operations of the base classes, on rows [b, parts].

    @uncompiled
    def _tables(self, event_shape: tuple[int, ...], device: torch.device | None = None) -> Tables:
        return _tables(self, tuple(event_shape), device or torch.device("cpu"))

    def _tables_for(self, rows: Tensor) -> Tables:
        return self._tables(tuple(rows.shape[1:]), rows.device)

    def _argmax(self, rows: Tensor) -> Tensor:
        return algorithms.argmax(self._tables_for(rows), rows.flatten(1)).reshape(rows.shape)

    def _value(self, rows: Tensor, maximum: Maximum) -> Tensor:
        tables = self._tables_for(rows)
        return algorithms.inside(tables, rows.flatten(1), maximum)[:, tables.root]

    def _law(self, rows: Tensor) -> ExactLaw | None:
        return EdgeLaw(self._tables_for(rows), rows)

    # Sums are float64 whatever the dtype of the rows: sums of many log-weights would leave four digits in float32.

    def _log_partition(self, rows: Tensor) -> Tensor:
        return super()._log_partition(in_double(rows))

    def _reference_marginals(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        marginals, log_partition = algorithms.marginals(self._tables_for(rows), in_double(self._cleaned(rows.detach())).flatten(1))
        return marginals.reshape(rows.shape), log_partition

    def _reference_covariance_product(self, rows: Tensor, along: Tensor) -> Tensor:
        cleaned, direction = (in_double(each).flatten(1) for each in (self._cleaned(rows.detach()), along))
        return algorithms.covariance_product(self._tables_for(rows), cleaned, direction).reshape(rows.shape)

    def _noise_size(self, event_shape: tuple[int, ...]) -> int:
        return int(_packed(self, tuple(event_shape)).sizes[STEPS])

    def _sample(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        drawn = algorithms.sample(self._tables_for(rows), rows.flatten(1).double(), uniforms)
        return drawn.reshape(*drawn.shape[:2], *rows.shape[1:])

    def _rank(self, structures: Tensor) -> Tensor:
        return algorithms.rank(self._tables_for(structures), structures.flatten(1))

    # Those below go from node to node in an order that the numbers decide. Compiled steps on the CPU take 5 to 1,000 times less time than
    # batched torch, so they compute them for every device, and without kernels too.

    def _distinct_noise_size(self, event_shape: tuple[int, ...], k: int) -> int:
        """One for the first structure, and two for every node of each."""
        return 1 + 2 * k * int(_packed(self, tuple(event_shape)).sizes[STEPS])

    def _sample_distinct(self, rows: Tensor, items: Tensor, k: int, uniforms: Tensor) -> DrawnSet:
        event = tuple(rows.shape[1:])
        drawn = executor.sample_distinct(_packed(self, event), rows.flatten(1).cpu(), items.cpu(), k, uniforms.cpu())
        structures, *others = (values.to(rows.device) for values in vars(drawn).values())
        return DrawnSet(structures.reshape(k, len(items), *event), *others)

    def _kbest(self, rows: Tensor, k: int) -> Tensor:
        kernel = executor.kernel(_packed(self, tuple(rows.shape[1:])), "kbest", len(rows))
        # Few numbers are 1: what is written, and cast to the dtype of the scores, is mostly zeros, of which float32 has the fewest bytes.
        structures = torch.zeros((len(rows), k, *rows.shape[1:]), dtype=torch.float32)
        kernel(rows.cpu().contiguous(), structures)
        return structures.movedim(1, 0).to(rows.device)

    def _unrank(self, ranks: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        event = tuple(event_shape)
        packed = _packed(self, event)
        # How often a part is counted, at most once for each node of a derivation, must fit.
        fits = int(packed.sizes[STEPS]) < 256 or bool(self.binary_mask(event).all())
        structures = torch.zeros((len(ranks), *event), dtype=torch.uint8 if fits else torch.int64)
        steps = executor.EDGE * int(packed.sizes[STEPS]) + math.prod(event) // 8
        kernels.Kernel(executor.unrank, (packed, _ranking(self, event)), steps)(ranks.cpu().contiguous(), structures)
        return structures.to(ranks.device)


@lru_cache(maxsize=64)
@untraced
def _packed(oracle: DerivedOracle, event_shape: tuple[int, ...]) -> Packed:
    """What an oracle states for an event shape, once it is sure that it can be used."""
    found = oracle.derivations(event_shape)
    if not isinstance(found, Derivations):
        raise ValueError(f"`{oracle.name}.derivations` returned {type(found).__name__}; expected what `Builder.finish` returns")
    if found.parts != math.prod(event_shape):
        raise ValueError(
            f"`{oracle.name}.derivations` has {found.parts} parts for event shape {event_shape}; "
            f"expected {math.prod(event_shape)}, one for each entry: Builder({math.prod(event_shape)})"
        )
    packed = pack(found)
    if packed is None:
        raise ValueError(f"`{oracle.name}` has no structure of event shape {event_shape}; expected one at least, or a shape it refuses")
    return packed


@made_once
def _tables(oracle: DerivedOracle, event_shape: tuple[int, ...], device: torch.device) -> Tables:
    return tables_of(_packed(oracle, event_shape), device, oracle.binary_mask(event_shape).flatten())


@lru_cache(maxsize=64)
def _count(oracle: DerivedOracle, event_shape: tuple[int, ...]) -> int:
    return int(ranking(_packed(oracle, event_shape), object).counts[-1])


@lru_cache(maxsize=64)
def _longest(oracle: DerivedOracle, event_shape: tuple[int, ...]) -> int:
    tables = oracle._tables(event_shape)
    ones = torch.ones(1, tables.parts, dtype=torch.float64)
    return max(1, int(algorithms.inside(tables, ones, torch.amax)[0, tables.root]))


@lru_cache(maxsize=64)
def _ranking(oracle: DerivedOracle, event_shape: tuple[int, ...]) -> Ranking:
    return ranking(_packed(oracle, event_shape))
