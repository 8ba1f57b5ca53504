"""Sparse distributions over structures: SparseMAP, as a relaxation too, and sparsemax over all structures or the best."""

import abc
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..oracles.capabilities import EnumerableOracle, KBestOracle, Oracle, ProjectionOracle
from ..oracles.capabilities.derivatives import unsqueeze_event
from ..oracles.numerics import share_rows
from ..oracles.options import Count
from .base import Estimator, Evaluations, O, Relaxation
from .exact import chunks
from .relaxations import entmax
from .surrogates import Loss, evaluate, with_gradient


@dataclass(frozen=True)
class SparseMAP(Relaxation[ProjectionOracle], name="sparsemap", tier="core", references=("niculae2018sparsemap",)):
    """SparseMAP: the loss sees its mean ``argmin_{μ ∈ conv Z} ½‖μ − θ‖²``, with the exact gradient of ``L`` there. Deterministic.

    References:
        Niculae, Martins, Blondel & Cardie 2018, "SparseMAP: differentiable sparse structured inference", section 3.

    Example:
        >>> loss, scores = lambda z: z @ torch.tensor([1.0, -0.5, 2.0]), torch.tensor([0.3, -0.2, 0.5])
        >>> SparseMAP().gradient(loss, "categorical", scores, generator=torch.Generator())
        tensor([-0.5000,  0.0000,  0.5000])
    """

    deterministic = True
    calls = Evaluations(losses=1, loss_gradients=1, projections=1)

    def structure(self, oracle: ProjectionOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return oracle.project(scores).mean


@dataclass(frozen=True)
class SparseMAPMarginalisation(Estimator[ProjectionOracle], name="sparsemap_marginalisation", references=("correia2020efficient",)):
    """SparseMAP marginalisation: ``Σ_s w_s(θ) L(a_s)`` over the atoms, with its exact gradient.

    Where the mean lies on a face of the polytope that is no simplex, which is the rule for chains, other atoms would give the same mean,
    and another estimate: the distribution, unlike the mean, is not unique. The atoms are those that the active set met; rounding, and so
    another version of the solver, can choose others.

    The loss is evaluated on structures only. Deterministic, and exact for its own objective; only values of the loss are needed.

    References:
        Correia et al. 2020, "Efficient marginalization of discrete and structured latent variables via sparsity", section 4.
    """

    objective = "sparse"
    unbiased = True
    deterministic = True
    calls = Evaluations(projections=1, support_losses=1)

    def surrogate(self, loss: Loss, oracle: ProjectionOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        solution = oracle.project(scores)
        weights, atoms, event = solution.weights, solution.atoms, oracle.event_ndim
        # A slot without weight repeats the heaviest atom, so that the loss sees structures alone.
        heaviest = torch.take_along_dim(atoms, unsqueeze_event(weights.argmax(-1, keepdim=True), event), dim=-event - 1)
        structures = torch.where(unsqueeze_event(weights > 0, event), atoms, heaviest)
        losses = evaluate(loss, structures.movedim(-event - 1, 0), event).movedim(0, -1)
        return (weights * losses).sum(-1)


class SparsemaxOverStructures(Estimator[O]):
    """``Σ_s p_s(θ) L(z_s)`` with p the sparsemax of the scores of some structures; a subclass says which, best first.

    The scores are ``⟨θ, z⟩``, by which `argmax` and `kbest` rank. For a policy that is normalised locally, that is the log-probability of a
    structure, so that the Gibbs law is the softmax, here as elsewhere, of what sparsemax is taken of.
    """

    objective = "sparse"
    unbiased = True
    deterministic = True

    @abc.abstractmethod
    def _candidates(self, oracle: O, scores: Tensor) -> Tensor:
        """Structures [m, *batch, *event], no two alike, which hold the support; the best first."""

    def surrogate(self, loss: Loss, oracle: O, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        event, leaf = oracle.event_ndim, scores.detach()
        candidates = self._candidates(oracle, leaf)
        support = _probabilities(oracle, candidates, leaf) > 0
        # Probabilities fall with the scores, so that the support comes first. How long it is has to be known here: one host copy.
        size = _longest(support)
        atoms, inside = candidates[:size], support[:size]
        # A slot without weight repeats the best structure, so that the loss sees structures alone.
        losses = evaluate(loss, torch.where(unsqueeze_event(inside, event), atoms, atoms[:1]), event)
        excess = (losses - losses[:1]).detach()
        with torch.enable_grad():
            leaf = leaf.requires_grad_()
            weights = _probabilities(oracle, atoms, leaf)
            # The weights sum to 1, so that the loss of the best structure may be taken off, whatever its offset.
            (estimate,) = torch.autograd.grad(weights, leaf, excess)
        return with_gradient((weights.detach() * losses).sum(0), scores, estimate)


def _longest(held: Tensor) -> int:
    """How many of [m, *batch] come first in some row, at least 1; there may be no row."""
    return max(int(held.reshape(len(held), -1).any(1).sum()), 1)


def _probabilities(oracle: Oracle, structures: Tensor, scores: Tensor) -> Tensor:
    """[m, *batch]: sparsemax over structures [m, *batch, *event], of those that are feasible; 0 for the zero tensor."""
    values = oracle.score(structures, scores.double())
    some = (structures != 0).flatten(structures.ndim - oracle.event_ndim).any(-1)
    return entmax(torch.where(some, values, -math.inf).movedim(0, -1), 2.0).movedim(-1, 0).to(scores.dtype)


@dataclass(frozen=True)
class SparsemaxMarginalisation(
    SparsemaxOverStructures[EnumerableOracle], name="sparsemax_marginalisation", references=("correia2020efficient",)
):
    """Sparsemax marginalisation: ``Σ_z p_z(θ) L(z)`` with ``p = sparsemax(⟨θ, z⟩ of all z)``, and its exact gradient.

    The gradient is ``Σ_S (L(z) − mean_S L) z`` over the support S: on one-hot structures ``1_S (ℓ − mean_S ℓ)``. Deterministic, and exact
    for its own objective; only values of the loss on the support are needed.

    Cost: the score of every structure of every distinct row, one loss value per structure of the support; memory of one chunk.

    Args:
        chunk: structures whose scores are computed together.

    References:
        Correia et al. 2020, section 3.

    Example:
        >>> loss, scores = lambda z: z @ torch.tensor([1.0, -0.5, 2.0]), torch.tensor([0.6, -0.4, 1.0])
        >>> SparsemaxMarginalisation().gradient(loss, "categorical", scores, generator=torch.Generator())
        tensor([-0.5000,  0.0000,  0.5000])
    """

    limit: Count = 2**16
    chunk: Count = 4096

    calls = Evaluations(listings=1, support_losses=1)

    def _candidates(self, oracle: EnumerableOracle, scores: Tensor) -> Tensor:
        rows = share_rows(scores, oracle.event_ndim)
        event = rows.shape[rows.ndim - oracle.event_ndim :]
        listed = list(chunks(oracle, rows, self.chunk))
        best, index = torch.cat([oracle.score(chunk, rows.double()) for chunk in listed]).sort(0, descending=True)
        # Nothing at 1 below the best is in the support: sparsemax never needs it.
        atoms = torch.cat(listed).reshape(-1, *event)[index[: _longest(best > best[:1] - 1)]]
        return atoms.expand(-1, *scores.shape)


@dataclass(frozen=True)
class TopKSparsemax(SparsemaxOverStructures[KBestOracle], name="top_k_sparsemax", references=("correia2020efficient",)):
    """Top-k sparsemax: ``Σ_s p_s(θ) L(z_s)`` with p the sparsemax of the scores of the k best structures, and its exact gradient.

    It is sparsemax marginalisation wherever that has fewer than k structures in its support, which p shows by a 0; elsewhere the structures
    that are left out have no gradient. Deterministic, and exact for its own objective, which jumps where the list changes at full support.

    Args:
        k: how many structures; all of them where there are fewer. The authors use 10.

    References:
        Correia et al. 2020, section 4.1.

    Example:
        >>> loss, scores = lambda z: z @ torch.tensor([1.0, -0.5, 2.0, 0.0]), torch.tensor([0.3, -0.2, 0.5, 0.1])
        >>> TopKSparsemax(k=2).gradient(loss, "subset[k=2]", scores, generator=torch.Generator())
        tensor([ 0.5000,  0.0000,  0.0000, -0.5000])
    """

    k: Count = 10

    def evaluations(self) -> Evaluations:
        return Evaluations(kbest=self.k, support_losses=1)

    def _candidates(self, oracle: KBestOracle, scores: Tensor) -> Tensor:
        total = oracle.count(tuple(scores.shape[scores.ndim - oracle.event_ndim :]))
        return oracle.kbest(scores, min(self.k, total))
