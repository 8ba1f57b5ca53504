"""Gradient estimators: ``(loss, oracle, scores) -> a surrogate whose gradient is the estimate``."""

from collections import ChainMap
from collections.abc import Mapping
from typing import Any

from ..oracles import plugins, registry
from .antithetic import ARM, ARSM, CARMS, DisARM, DisARMStickBreaking, DisARMTree
from .argmax_differences import AdaptiveImplicitMLE, BlackboxDifferentiation, ImplicitMLE
from .base import Estimator, Evaluations, PathwiseEstimator
from .baselines import (
    ConditionalMeanBaseline,
    ConstantBaseline,
    GreedyBaseline,
    NormalisedRewards,
    OptimalBaseline,
    RunningMeanBaseline,
    SampledBaseline,
)
from .constrained_attention import ConstrainedSoftmax, ConstrainedSparsemax, csoftmax, csparsemax
from .control_variates import ControlSettings, Rebar, Relax
from .exact import ExactMarginalisation
from .factorised import LocalExpectation, Rodeo
from .fused_attention import Fusedmax, Oscarmax, fusedmax, oscarmax
from .gumbel import (
    DecoupledGumbel,
    GumbelCRF,
    GumbelSoftmax,
    RelaxedTopK,
    StraightThroughGumbel,
    StraightThroughGumbelCRF,
    StraightThroughTopK,
)
from .gumbel_rao import GappedStraightThrough, GumbelRao
from .layer import StructuredLayer, train_step
from .learned_baseline import LearnedBaseline
from .noise import NOISES, Gumbel, Noise, Normal, SmoothNoise, SumOfGamma, make_noise
from .own import is_estimator, own_estimator, shown_name
from .perturbation import (
    MultiplicativePerturbation,
    PerturbAndMAP,
    PerturbAndParse,
    PerturbedOptimizer,
    StochasticSoftmax,
    StochasticSparseMAP,
)
from .policies import StepGreedy, StepLeaveOneOut, StepLocalExpectation, StepReinforce, StepSampled
from .policy_baselines import StepConditionalMean, StepLearned, StepOptimal
from .ppo import ProximalPolicy, Rollout, StepPPO
from .reinmax import PathQuadrature, ReinMax, ReinMaxControl, ReinMaxRao
from .relaxations import DifferentiableDP, Entmax, StructuredAttention, entmax, smoothed_maximum
from .score_function import AntitheticPairs, DoubleControl, LeaveOneOut, MuProp, Reinforce, VarGrad, half_variance
from .sparse_supports import SparseMAP, SparseMAPMarginalisation, SparsemaxMarginalisation, TopKSparsemax
from .spigot import SPIGOT, SPIGOTCE, SPIGOTEG, SPIGOTSteps
from .straight_through import (
    Identity,
    PerturbedIdentity,
    SampledStraightThrough,
    Simple,
    StepStraightThrough,
    StepStraightThroughGumbel,
    StraightThrough,
    StraightThroughMarginals,
)
from .supervised import (
    SUPERVISED_LOSSES,
    PerturbedFenchelYoung,
    crf_loss,
    fenchel_young,
    hamming,
    margin_perceptron,
    margin_sparsemap_loss,
    sparsemap_loss,
    spo_plus_loss,
    structured_perceptron,
)
from .supervised_training import SUPERVISED, Frozen, Supervised
from .surrogates import Loss, of_indices
from .without_replacement import ImportanceWeightedSet, SumAndSample, UnorderedSet

_FAMILIES: tuple[tuple[type[Estimator[Any]], ...], ...] = (
    # the reference
    (ExactMarginalisation,),
    # score function
    (Reinforce, ConstantBaseline, RunningMeanBaseline, GreedyBaseline, SampledBaseline, OptimalBaseline, LearnedBaseline),
    (ConditionalMeanBaseline, NormalisedRewards, ProximalPolicy, LeaveOneOut, VarGrad, MuProp, DoubleControl, AntitheticPairs),
    (SumAndSample, UnorderedSet, ImportanceWeightedSet),
    # score function of independent categories and bits
    (ARM, DisARM, DisARMStickBreaking, DisARMTree, CARMS, ARSM, LocalExpectation, Rodeo, Rebar, Relax),
    # score function of policies, decision by decision
    (StepReinforce, StepGreedy, StepSampled, StepConditionalMean, StepOptimal, StepLearned, StepLeaveOneOut, StepLocalExpectation),
    (StepPPO,),
    # straight-through
    (StraightThrough, StraightThroughMarginals, SampledStraightThrough, Simple, StepStraightThrough, Identity, PerturbedIdentity),
    (GappedStraightThrough, ReinMax, ReinMaxRao, ReinMaxControl, PathQuadrature),
    # Gumbel relaxations
    (GumbelSoftmax, StraightThroughGumbel, DecoupledGumbel, GumbelRao, StepStraightThroughGumbel, RelaxedTopK, StraightThroughTopK),
    (GumbelCRF, StraightThroughGumbelCRF),
    # perturbation
    (PerturbAndMAP, PerturbAndParse, StochasticSoftmax, StochasticSparseMAP, PerturbedOptimizer, MultiplicativePerturbation),
    # surrogate projections and finite differences
    (SPIGOT, SPIGOTSteps, SPIGOTCE, SPIGOTEG, BlackboxDifferentiation, ImplicitMLE, AdaptiveImplicitMLE),
    # relaxations without noise
    (StructuredAttention, DifferentiableDP, Entmax, Fusedmax, Oscarmax, ConstrainedSparsemax, ConstrainedSoftmax, SparseMAP),
    # marginalisation over a sparse support
    (SparseMAPMarginalisation, SparsemaxMarginalisation, TopKSparsemax),
)

ESTIMATORS = {kind.name: kind for family in _FAMILIES for kind in family}
"""The classes of the estimators by their names."""

AVAILABLE_ESTIMATORS = plugins.Catalogue(ESTIMATORS, "estimator", Estimator, SUPERVISED)
"""`ESTIMATORS` and those of plugins."""

CONTENDERS: Mapping[str, type[Estimator[Any]]] = ChainMap(SUPERVISED, AVAILABLE_ESTIMATORS)  # type: ignore[arg-type]
"""Everything that `make_estimator` knows: these, and training that is told true structures."""

__all__ = [
    "ARM",
    "ARSM",
    "AVAILABLE_ESTIMATORS",
    "CARMS",
    "CONTENDERS",
    "ESTIMATORS",
    "NOISES",
    "SPIGOT",
    "SPIGOTCE",
    "SPIGOTEG",
    "SUPERVISED",
    "SUPERVISED_LOSSES",
    "AdaptiveImplicitMLE",
    "AntitheticPairs",
    "BlackboxDifferentiation",
    "ConditionalMeanBaseline",
    "ConstantBaseline",
    "ConstrainedSoftmax",
    "ConstrainedSparsemax",
    "ControlSettings",
    "DecoupledGumbel",
    "DifferentiableDP",
    "DisARM",
    "DisARMStickBreaking",
    "DisARMTree",
    "DoubleControl",
    "Entmax",
    "Estimator",
    "Evaluations",
    "ExactMarginalisation",
    "Frozen",
    "Fusedmax",
    "GappedStraightThrough",
    "GreedyBaseline",
    "Gumbel",
    "GumbelCRF",
    "GumbelRao",
    "GumbelSoftmax",
    "Identity",
    "ImplicitMLE",
    "ImportanceWeightedSet",
    "LearnedBaseline",
    "LeaveOneOut",
    "LocalExpectation",
    "Loss",
    "MuProp",
    "MultiplicativePerturbation",
    "Noise",
    "Normal",
    "NormalisedRewards",
    "OptimalBaseline",
    "Oscarmax",
    "PathQuadrature",
    "PathwiseEstimator",
    "PerturbAndMAP",
    "PerturbAndParse",
    "PerturbedFenchelYoung",
    "PerturbedIdentity",
    "PerturbedOptimizer",
    "ProximalPolicy",
    "Rebar",
    "ReinMax",
    "ReinMaxControl",
    "ReinMaxRao",
    "Reinforce",
    "Relax",
    "RelaxedTopK",
    "Rodeo",
    "Rollout",
    "RunningMeanBaseline",
    "SPIGOTSteps",
    "SampledBaseline",
    "SampledStraightThrough",
    "Simple",
    "SmoothNoise",
    "SparseMAP",
    "SparseMAPMarginalisation",
    "SparsemaxMarginalisation",
    "StepConditionalMean",
    "StepGreedy",
    "StepLearned",
    "StepLeaveOneOut",
    "StepLocalExpectation",
    "StepOptimal",
    "StepPPO",
    "StepReinforce",
    "StepSampled",
    "StepStraightThrough",
    "StepStraightThroughGumbel",
    "StochasticSoftmax",
    "StochasticSparseMAP",
    "StraightThrough",
    "StraightThroughGumbel",
    "StraightThroughGumbelCRF",
    "StraightThroughMarginals",
    "StraightThroughTopK",
    "StructuredAttention",
    "StructuredLayer",
    "SumAndSample",
    "SumOfGamma",
    "Supervised",
    "TopKSparsemax",
    "UnorderedSet",
    "VarGrad",
    "crf_loss",
    "csoftmax",
    "csparsemax",
    "entmax",
    "fenchel_young",
    "fusedmax",
    "half_variance",
    "hamming",
    "make_estimator",
    "make_noise",
    "margin_perceptron",
    "margin_sparsemap_loss",
    "of_indices",
    "oscarmax",
    "own_estimator",
    "smoothed_maximum",
    "sparsemap_loss",
    "spo_plus_loss",
    "structured_perceptron",
    "train_step",
]


def make_estimator(name: Any, /, **declared: Any) -> Estimator[Any]:
    """The estimator of a name such as ``imle[lambda=2.5,noise=sum_of_gamma]``, ``my_module:MyEstimator`` or ``./my_file.py:MyEstimator``.

    An estimator is returned as it is, and your own function or layer becomes one (see `own_estimator`, which the declarations are for).
    Every function that takes an estimator takes any of these, by this function.

    Noise goes by name with its defaults, or with options after a slash: ``noise=sum_of_gamma/k=5/scale=1``. The names of `SUPERVISED`, such
    as ``crf``, are known too. ``mine=./my_file.py:MyEstimator`` gives code a name, by which it is known in this process from then on.

    Example:
        >>> make_estimator("imle[lambda=2.5, noise=sum_of_gamma/k=5]")
        ImplicitMLE(lambda_=2.5, noise=SumOfGamma(k=5.0, scale=1.0, terms=10), num_samples=1, divide_by_lambda=False)
    """
    if not isinstance(name, str):
        return own_estimator(name, **declared)
    shown, code = shown_name(name)
    if shown != code:
        if not shown or "=" in code.partition(":")[0]:
            raise ValueError(f"got the estimator {name!r}; expected one name before its code, such as mine={code.rpartition('=')[2]}")
        if shown in CONTENDERS:
            raise ValueError(f"got the name {shown!r} for {code}, which an estimator of the package has; expected another one")
        NAMED[shown] = code
        declared = {"name": shown} | declared
    code = code if code in CONTENDERS else NAMED.get(code, code)  # a plugin of that name may have come since
    place, given = registry.parse(code)
    if ":" not in place:
        return own_estimator(registry.build(name, CONTENDERS, "estimator", {Noise: make_noise}), **declared)
    found = registry.imported(place, "estimator")
    return own_estimator(found, given, **({} if is_estimator(found) else {"name": code.strip()} | declared))


NAMED: dict[str, str] = {}
"""The code behind each name that an estimator of one's own was given."""
