"""Projections on the marginal polytope, and a memory of them, with which training begins where it was at the step before."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, final

import torch
from torch import Tensor

from ..active_set import solver
from ..active_set.solution import Projection, SparseSolution, Start
from ..numerics import share_rows
from ..transforms import operation, refuse_duals, transforming, uncompiled
from .base import Oracle

RowArgmax = Callable[[Tensor, Tensor], Tensor]
"""MAP of directions [i, *event] that belong to the rows of these indices [i]."""


class ProjectionOracle(Oracle):
    """An oracle that projects on the marginal polytope: SparseMAP (Niculae et al. 2018).

    Example:
        >>> from structgrad.oracles import Subset
        >>> solution = Subset(2).project(torch.tensor([1.0, 0.6, 0.2, -3.0]))
        >>> solution.mean
        tensor([1.0000, 0.7000, 0.3000, 0.0000])
        >>> int(solution.support), float(solution.gap) < 1e-12
        (2, True)
    """

    _projects_in_closed_form: ClassVar[bool] = False
    """Whether `_project` gets rows on the device of the scores; else copies on the CPU."""

    def _project(self, rows: Tensor, argmax: RowArgmax, inside: Tensor | None, start: Start | None) -> Projection:
        """The projection of float64 rows [b, *event], without gradients, which `SparseSolution` adds: by the active set, or a closed form.

        ``inside`` [b, *event] is False in the padding of shorter items (None where there is none): padding is forbidden in the rows, and is
        0 in every atom, which is a structure of the item alone. ``argmax(direction, items)`` is `_argmax` for some rows, so cut. A closed
        form has no use for the atoms of ``start``.
        """
        return solver.solve(argmax, rows, empty=lambda: self._holds_empty(self._event(rows)), start=start)

    @final
    @uncompiled
    def project(self, scores: Tensor, *, lengths: Tensor | None = None, start: SparseSolution | None = None) -> SparseSolution:
        """``argmin_{μ ∈ conv Z} ½‖μ − θ‖²``: the sparse mean with its atoms and weights, differentiable, with a certified gap.

        An infeasible item gives mean 0, weights 0 and gap ``inf``. Computed in float64.

        The active set begins with the atoms of ``start``, a solution of this oracle for scores of this shape and these lengths (ValueError
        for any other). `WarmStart` keeps solutions for this. Mean, gap and gradients are those without it, up to rounding; where the mean
        lies on a face that is no simplex, the atoms may be others. Closed forms begin again. For steps of a hundredth of the scores the
        search takes a quarter to a half of the time, for chains of 32 × 16 up to .6; for steps of a tenth it saves a third at best.
        """
        lengths = self._kept_lengths(scores) if lengths is None else lengths
        if transforming():
            if start is not None:
                raise ValueError("`project` got a start under torch.func; expected none: leave it out, because a transform has other rows")
            dims = scores.ndim - self.event_ndim  # one operation, which solves again for its derivatives
            mean, gap, *atoms = (each.reshape(-1, *each.shape[dims:]) for each in self._solved(scores, lengths))
            projection = Projection(gap=gap, decompose=lambda: (atoms[0], atoms[1]), mean=mean)
            return SparseSolution(projection, scores.detach(), tuple(scores.shape[:dims]), self.event_ndim)
        refuse_duals("project", scores)
        valid, inside = self._parameters("project", scores, lengths, raw=True)
        dims, event = scores.ndim - self.event_ndim, self._event(scores)
        batch, sizes = tuple(scores.shape[:dims]), lengths
        if lengths is None or inside is None:
            valid = self._cleaned(valid)
        else:
            beyond = self._cleaned(torch.full_like(scores, -math.inf))
            valid = torch.where(self._parts_inside(event, inside), scores, beyond)
            several = lengths.shape[lengths.ndim - (len(self.length_limits(event)) > 1) :]
            sizes = lengths.expand((*batch, *several)).reshape(math.prod(batch), *several)
        shared = share_rows(valid.detach(), self.event_ndim)
        rows, distinct = shared.reshape(-1, *event).double(), tuple(shared.shape[:dims])
        memory: WarmStart | None = vars(self).get("_warm")
        found, begun = start if start is not None or memory is None else memory.solution, None
        refusal = None if found is None else self._start_refusal(found, scores, lengths)
        if start is not None and refusal is not None:
            raise ValueError(f"`project` got {refusal}")
        if found is not None and refusal is None:
            of_item = torch.arange(math.prod(found.shared)).reshape(found.shared).expand(batch)
            begun = Start(found, of_item[tuple(slice(size) for size in distinct)].reshape(-1))
        projection = self._project_rows(rows, sizes, begun)
        solution = SparseSolution(projection, valid, distinct, self.event_ndim, self, None if lengths is None else lengths.clone())
        if memory is not None:
            memory.solution = dataclasses.replace(solution, scores=solution.scores.detach())
        return solution

    def _start_refusal(self, start: Any, scores: Tensor, lengths: Tensor | None = None) -> str | None:
        """Why a projection of these scores cannot begin with a solution; None where it can. To compare lengths waits for their device."""
        if not isinstance(start, SparseSolution):
            return f"a start of type {type(start).__name__}; expected a solution: give what `project` returned"
        if start.oracle != self:
            owner = "no oracle" if start.oracle is None else f"the oracle {start.oracle}"
            return f"a start of {owner}; expected one of {self}: give a solution of this oracle"
        if start.scores.shape != scores.shape:
            shapes = f"{tuple(start.scores.shape)}; expected that of the scores, {tuple(scores.shape)}"
            return f"a start of shape {shapes}: give the solution of the same items"
        known = start.lengths
        if (known is None) != (lengths is None) or (
            known is not None and lengths is not None and not torch.equal(known.to(lengths.device), lengths)
        ):
            return "a start of other lengths; expected those of the scores: give the solution of the same items"
        return None

    @operation()
    def _solved(self, scores: Tensor, lengths: Tensor | None) -> tuple[Tensor, ...]:
        solution = self.project(scores, lengths=lengths)
        return solution.mean, solution.gap, solution.atoms, solution.weights

    def _project_rows(self, rows: Tensor, lengths: Tensor | None, start: Start | None) -> Projection:
        event = tuple(rows.shape[1:])
        if not self._projects_in_closed_form:  # an active set would wait for a device at every step
            rows, lengths = rows.cpu(), None if lengths is None else lengths.cpu()
        completed = rows if lengths is None else self._complete(rows, lengths)
        kernel = self._kernel("project", completed)  # of the event that it gets, which padding may have made larger
        inside = None if lengths is None else self._inside(event, lengths).expand_as(rows)
        if kernel is not None:
            return solver.solve_compiled(kernel, completed, inside, start)

        def argmax(direction: Tensor, items: Tensor) -> Tensor:
            if lengths is None:
                return self._best(direction)
            best = self._best(self._complete(direction, lengths[items]))
            return self._cut(best, self._inside(event, lengths[items]).expand_as(direction), direction.dtype)

        return self._project(rows, argmax, inside, start)


P = TypeVar("P", bound=ProjectionOracle)


class WarmStart:
    """Keeps the last projection, as the start of the next one: a memory for each batch that comes again while scores change little.

    Called with an oracle, it gives an equal oracle, whose `project` begins with the solution that is kept here, and replaces it. Estimators
    and losses take that oracle, `StructuredLayer` the memory by its argument ``warm``. Where the solution is one of another oracle, shape
    or lengths, and under `torch.func`, the projection begins again. Results: see ``start`` of `ProjectionOracle.project`.

    Cost: memory for the atoms of one solution: for an item, four bytes for each part of each of its atoms, and its scores.

    Attributes:
        solution: the last one, without a graph; None before the first.

    Example:
        >>> import torch
        >>> from structgrad.oracles import LinearChain, WarmStart
        >>> scores, memory = torch.linspace(-1, 1, 90).sin().reshape(2, 5, 3, 3), WarmStart()
        >>> for step in range(3):
        ...     mean = memory(LinearChain()).project(scores * (1 + 0.01 * step)).mean
        >>> torch.allclose(mean, LinearChain().project(scores * 1.02).mean, atol=1e-6), memory.solution.support.shape
        (True, torch.Size([2]))
    """

    def __init__(self) -> None:
        self.solution: SparseSolution | None = None

    def __call__(self, oracle: P) -> P:
        """The oracle, whose projections begin and end here; ValueError for one without projections."""
        if not isinstance(oracle, ProjectionOracle):
            raise ValueError(
                f"`WarmStart` got an oracle of type {type(oracle).__name__}; expected an oracle with projections, such as LinearChain: "
                "train without a warm start"
            )
        return oracle._keeping(_warm=self)
