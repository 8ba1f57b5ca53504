"""The Gibbs laws of the oracles as distributions of `torch.distributions`, one class for each oracle."""

# mypy: disable-error-code="type-abstract"
# An oracle is asked whether it has a capability, which is an abstract class.

from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, kl_divergence, register_kl

from . import ORACLES
from .capabilities import EnumerableOracle, KBestOracle, MarginalOracle, Oracle, SamplingOracle
from .capabilities.base import Mask
from .registry import make_oracle

__all__ = [
    "CTC",
    "Alignment",
    "Assignment",
    "CardinalitySubset",
    "Categorical",
    "Constituency",
    "EditAlignment",
    "Grammar",
    "IndependentCategoricals",
    "LabelledConstituency",
    "LabelledProjectiveTree",
    "LinearChain",
    "OracleDistribution",
    "ProjectiveTree",
    "SecondOrderChain",
    "SemiMarkov",
    "ShiftReduce",
    "SpanningTree",
    "StructureDistribution",
    "Subset",
    "TiedChain",
    "TiedSemiMarkov",
]

Capability = TypeVar("Capability", bound=Oracle)


class StructureDistribution(Distribution):
    """``p(z) ∝ exp⟨scores, z⟩`` over the structures ``z`` of an oracle: 0/1 tensors of the event's shape.

    `log_prob`, `log_partition`, `marginals` and `entropy` are differentiable in the scores; samples are not, for which there are
    estimators. What an oracle cannot do raises NotImplementedError.

    Args:
        oracle: the set of structures, or its name, such as ``"subset[k=3]"``.
        scores: ``[*batch, *event]``; ``-inf`` forbids a part.
        lengths: int ``[*batch]``, how much of the first event axis an item uses; None where all are whole.
        mask: True for what is allowed, of items ``[*batch, n]`` or of parts: see `Oracle.masked`.
        validate_args: whether arguments, and the values given to `log_prob`, are checked. The check of a value costs an argmax.

    Example:
        >>> from structgrad.distributions import SpanningTree
        >>> trees = SpanningTree(torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 2.0], [0.0, 0.0, 0.0]]))
        >>> trees.argmax()
        tensor([[0., 1., 0.],
                [0., 0., 1.],
                [0., 0., 0.]])
        >>> trees.log_prob(trees.argmax()).exp(), trees.entropy()
        (tensor(0.7311), tensor(0.5822))
    """

    has_enumerate_support = True

    def __init__(
        self,
        oracle: str | Oracle,
        scores: Tensor,
        *,
        lengths: Tensor | None = None,
        mask: Mask | None = None,
        validate_args: bool | None = None,
    ) -> None:
        oracle = make_oracle(oracle)
        oracle.check_scores("StructureDistribution", scores)
        split = scores.ndim - oracle.event_ndim
        self.oracle, (self.scores, self.lengths) = oracle, oracle.masked(scores, mask, lengths=lengths)
        super().__init__(scores.shape[:split], scores.shape[split:], validate_args=validate_args)

    @property
    def arg_constraints(self) -> dict[str, constraints.Constraint]:
        """Scores are numbers, or -inf."""
        return {"scores": constraints.real}

    @property
    def support(self) -> constraints.Constraint:
        """The structures, each a tensor of the event's shape."""
        return _Structures(self)

    @property
    def mean(self) -> Tensor:
        """The `marginals`."""
        return self.marginals()

    @property
    def mode(self) -> Tensor:
        """The structure of `argmax`."""
        return self.argmax()

    @property
    def variance(self) -> Tensor:
        """Variance of each 0/1 part, ``[*batch, *event]``."""
        if not self.oracle.binary_mask(tuple(self.event_shape)).all():
            raise NotImplementedError(f"`variance` needs parts of 0/1; some parts of {self.oracle.name} are counts")
        marginals = self.marginals()
        return marginals * (1 - marginals)

    def log_prob(self, value: Tensor) -> Tensor:
        """``log p(value)``: ``[*sample, *batch]`` of structures ``[*sample, *batch, *event]``."""
        if self._validate_args:
            self._validate_sample(value)
        return self._able(MarginalOracle, "log_prob").log_prob(value, self.scores, lengths=self.lengths)

    def sample(self, sample_shape: Any = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Exact samples ``[*sample_shape, *batch, *event]``, by torch's own generator where none is given."""
        oracle, device = self._able(SamplingOracle, "sample"), self.scores.device
        if generator is None:
            generator = torch.default_generator if device.type == "cpu" else torch.cuda.default_generators[device.index or 0]
        shape = torch.Size(sample_shape)
        if 0 in shape:
            return self.scores.new_zeros(self._extended_shape(shape))
        drawn = oracle.sample(self.scores.detach(), shape.numel(), generator=generator, lengths=self.lengths)
        return drawn.reshape(self._extended_shape(shape))

    def argmax(self) -> Tensor:
        """The structure of highest probability, ``[*batch, *event]``, ties to the lowest index."""
        return self.oracle.argmax(self.scores, lengths=self.lengths)

    def topk(self, k: int) -> Tensor:
        """The ``k`` structures of highest probability, best first: ``[k, *batch, *event]``."""
        return self._able(KBestOracle, "topk").kbest(self.scores, k, lengths=self.lengths)

    def marginals(self) -> Tensor:
        """``E[z]``: the probability of each part, ``[*batch, *event]``."""
        return self._able(MarginalOracle, "marginals").marginals(self.scores, lengths=self.lengths)

    def log_partition(self) -> Tensor:
        """``log Σ exp⟨scores, z⟩``: ``[*batch]``."""
        return self._able(MarginalOracle, "log_partition").log_partition(self.scores, lengths=self.lengths)

    def entropy(self) -> Tensor:
        """In nats, ``[*batch]``."""
        return self._able(MarginalOracle, "entropy").entropy(self.scores, lengths=self.lengths)

    def cross_entropy(self, other: "StructureDistribution") -> Tensor:
        """``−E[log q(z)]`` of another law q of the same structures, in nats, ``[*batch]``."""
        return self.entropy() + kl_divergence(self, other)

    def kl_divergence(self, other: "StructureDistribution") -> Tensor:
        """``KL(p ‖ q)`` to another law q of the same structures, as `torch.distributions.kl_divergence` gives it: ``[*batch]``."""
        return kl_divergence(self, other)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All structures, ``[count, *batch, *event]``, or ``[count, 1, ..., *event]`` where they are not expanded."""
        if self.lengths is not None:
            raise NotImplementedError("`enumerate_support` got items with lengths, which differ in their structures; enumerate one item")
        oracle = self._able(EnumerableOracle, "enumerate_support")
        listed = oracle.enumerate(tuple(self.event_shape), dtype=self.scores.dtype, device=self.scores.device)
        listed = listed.reshape(len(listed), *[1] * len(self.batch_shape), *self.event_shape)
        return listed.expand(-1, *self.batch_shape, *self.event_shape) if expand else listed

    def expand(self, batch_shape: Any, _instance: Any = None) -> "StructureDistribution":
        """These distributions in a larger batch, as a view."""
        new = object.__new__(type(self)) if _instance is None else _instance
        batch, lengths = torch.Size(batch_shape), self.lengths
        each = () if lengths is None else lengths.shape[len(self.batch_shape) :]
        new.lengths = None if lengths is None else lengths.expand(*batch, *each)
        new.oracle, new.scores = self.oracle, self.scores.expand(*batch, *self.event_shape)
        Distribution.__init__(new, batch, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return cast(StructureDistribution, new)

    def __repr__(self) -> str:
        lengths = "" if self.lengths is None else f", lengths: {tuple(self.lengths.shape)}"
        return f"{type(self).__name__}({self.oracle}, scores: {tuple(self.scores.shape)}{lengths})"

    def _able(self, capability: type[Capability], call: str) -> Capability:
        if isinstance(self.oracle, capability):
            return self.oracle
        raise NotImplementedError(f"`{call}` is not offered by {self.oracle.name}: it is no {capability.__name__}")


class OracleDistribution(StructureDistribution):
    """A `StructureDistribution` whose class names the oracle; its options are further arguments.

    Example:
        >>> from structgrad.distributions import Subset
        >>> Subset(torch.tensor([2.0, 1.0, 0.0]), k=2).marginals()
        tensor([0.9100, 0.7553, 0.3348])
    """

    structure: ClassVar[type[Oracle]]

    def __init_subclass__(cls, *, oracle: str | None = None) -> None:
        super().__init_subclass__()
        if oracle is not None:
            cls.structure = ORACLES[oracle]

    def __init__(
        self,
        scores: Tensor,
        *,
        lengths: Tensor | None = None,
        mask: Mask | None = None,
        validate_args: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__(self.structure(**options), scores, lengths=lengths, mask=mask, validate_args=validate_args)


class Alignment(OracleDistribution, oracle="alignment"):
    """Monotone alignments of two sequences."""


class Assignment(OracleDistribution, oracle="assignment"):
    """Permutations."""


class CTC(OracleDistribution, oracle="ctc"):
    """Alignments of connectionist temporal classification."""


class CardinalitySubset(OracleDistribution, oracle="cardinality_subset"):
    """Subsets with a score for their size."""


class Categorical(OracleDistribution, oracle="categorical"):
    """One of n categories."""


class Constituency(OracleDistribution, oracle="constituency"):
    """Binary constituency trees."""


class EditAlignment(OracleDistribution, oracle="edit_alignment"):
    """Alignments with insertions and deletions."""


class Grammar(OracleDistribution, oracle="grammar"):
    """Derivation trees of a grammar in Chomsky normal form."""


class IndependentCategoricals(OracleDistribution, oracle="categories"):
    """One category in each of several rows."""


class LabelledConstituency(OracleDistribution, oracle="labelled_constituency"):
    """Binary constituency trees with labels."""


class LabelledProjectiveTree(OracleDistribution, oracle="labelled_projective_tree"):
    """Projective dependency trees with labels."""


class LinearChain(OracleDistribution, oracle="linear_chain"):
    """Sequences of tags, scored by pairs of neighbours at each place."""


class ProjectiveTree(OracleDistribution, oracle="projective_tree"):
    """Projective dependency trees."""


class SecondOrderChain(OracleDistribution, oracle="second_order_chain"):
    """Sequences of tags, scored by triples."""


class SemiMarkov(OracleDistribution, oracle="semi_markov"):
    """Segmentations with labels."""


class ShiftReduce(OracleDistribution, oracle="shift_reduce"):
    """Sequences of decisions of a shift-reduce parser."""


class SpanningTree(OracleDistribution, oracle="spanning_tree"):
    """Dependency trees, projective or not."""


class Subset(OracleDistribution, oracle="subset"):
    """Subsets of k parts."""


class TiedChain(OracleDistribution, oracle="tied_chain"):
    """Sequences of tags, with one score for a pair of neighbours at every place."""


class TiedSemiMarkov(OracleDistribution, oracle="tied_semi_markov"):
    """Segmentations with labels, with one score for a pair of labels at every place."""


class _Structures(constraints.Constraint):
    """Tensors of 0/1 that are structures: the only best ones where their parts score 1 and all others -1."""

    is_discrete = True

    def __init__(self, law: StructureDistribution) -> None:
        self.law, self.event_dim = law, law.oracle.event_ndim
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        law, event = self.law, tuple(self.law.event_shape)
        batch = value.shape[: value.ndim - self.event_dim]
        read, lengths = law.oracle.read_mask(event, value.device), law.lengths
        if lengths is not None:
            each = lengths.shape[len(law.batch_shape) :]
            lengths = lengths.expand(*batch, *each)
            read = read & law.oracle.length_mask(event, lengths)
        parts = torch.where(law.oracle.binary_mask(event, value.device), 2 * value - 1, 0)
        best = law.oracle.argmax(parts.to(law.scores.dtype), lengths=lengths)
        return ((best == value) | ~read).flatten(-self.event_dim).all(-1)


@register_kl(StructureDistribution, StructureDistribution)  # type: ignore[untyped-decorator]
def _kl(first: StructureDistribution, second: StructureDistribution) -> Tensor:
    if first.oracle != second.oracle:
        raise NotImplementedError(f"`kl_divergence` got laws of {first.oracle} and {second.oracle}; expected one set of structures")
    return first._able(MarginalOracle, "kl_divergence").kl(first.scores, second.scores, lengths=first.lengths)
