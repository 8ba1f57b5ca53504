"""The Fisher information of an instance, from the exact derivative of the oracle's marginals."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from ...oracles.capabilities import MarginalOracle
from ..statistics.geometry import Geometry
from .enumeration import Truth

MAX_PARTS = 512  # the most parts of an event whose matrix of products of parts is computed


def geometry(oracle: Any, scores: Tensor, truth: Truth) -> Geometry | None:
    """The metric at scores ``[*event]``; None if the oracle has no marginals, or the event more than `MAX_PARTS` parts.

    It is computed once for a truth: all estimators of an instance share it.
    """
    if "geometry" not in truth.memo:
        found = None
        if isinstance(oracle, MarginalOracle) and scores.numel() <= MAX_PARTS and oracle.sums_in_reach(tuple(scores.shape)):
            theta = scores.double()
            flat = torch.where(theta == -math.inf, theta, 0)
            found = Geometry.of(fisher_information(oracle, theta), fisher_information(oracle, flat), truth.gradient)
        truth.memo["geometry"] = found
    return cast("Geometry | None", truth.memo["geometry"])


def fisher_information(oracle: MarginalOracle, scores: Tensor) -> Tensor:
    """``F = J' Cov(z) J``, [d, d] float64: the Hessian of ``KL(p_θ ‖ p_{θ+δ})`` at ``δ = 0``; J is the Jacobian of the natural parameters.

    J is the identity except for a policy that is normalised locally.

    Reference:
        Amari 1998, "Natural gradient works efficiently in learning".
    """
    size = scores.numel()
    directions = torch.eye(size, dtype=torch.float64, device=scores.device).reshape(size, *scores.shape)
    with torch.enable_grad():
        leaf = scores.detach().double().expand(size, *scores.shape).clone().requires_grad_()
        marginals = oracle.marginals(leaf)
        (jacobian,) = torch.autograd.grad(marginals, leaf, directions)
        parameters = oracle.natural_parameters(leaf)
        if parameters is not leaf:
            columns = jacobian.reshape(size, size).mT.reshape(leaf.shape)
            (jacobian,) = torch.autograd.grad(parameters, leaf, columns)
    information = jacobian.reshape(size, size)
    return (information + information.mT) / 2
