"""Structure oracles: scores to argmax, log-partition, marginals, samples, projection and enumeration."""

from . import plugins
from .active_set.solution import SparseSolution
from .alignment import Alignment, soft_dtw_divergence
from .assignment import Assignment
from .capabilities import (
    DistinctSamplingOracle,
    DrawnSet,
    EnumerableOracle,
    FactorisedOracle,
    KBestOracle,
    MarginalOracle,
    Oracle,
    PolicyOracle,
    ProjectionOracle,
    RelaxedOracle,
    SamplingOracle,
    SubsetOracle,
    WarmStart,
)
from .categorical import Categorical
from .constituency import Constituency
from .derivations import DEAD, UNIT, Builder, Derivations, DerivedOracle, Examples
from .derived import DERIVED
from .derived.cardinality_subset import CardinalitySubset
from .derived.ctc import CTC
from .derived.edit_alignment import EditAlignment
from .derived.grammar import Grammar
from .derived.labelled_constituency import LabelledConstituency
from .derived.labelled_projective_tree import LabelledProjectiveTree
from .derived.second_order_chain import SecondOrderChain
from .derived.semi_markov import SemiMarkov
from .derived.tied_semi_markov import TiedSemiMarkov
from .independent import IndependentCategoricals
from .linear_chain import LinearChain
from .projective_tree import ProjectiveTree
from .random_streams import SeedBlocks
from .registry import make_oracle
from .shift_reduce import ShiftReduce
from .spanning_tree import SpanningTree
from .subset import Subset
from .tied_chain import TiedChain

Categories = IndependentCategoricals
"""An older name."""

ORACLES: dict[str, type[Oracle]] = {
    "categorical": Categorical,
    "categories": IndependentCategoricals,
    "subset": Subset,
    "linear_chain": LinearChain,
    "tied_chain": TiedChain,
    "alignment": Alignment,
    "constituency": Constituency,
    "projective_tree": ProjectiveTree,
    "spanning_tree": SpanningTree,
    "assignment": Assignment,
    "shift_reduce": ShiftReduce,
    **DERIVED,
}
"""The classes of the oracles by their names."""

AVAILABLE_ORACLES = plugins.Catalogue(ORACLES, "oracle", Oracle)
"""`ORACLES` and those of plugins."""

__all__ = [
    "AVAILABLE_ORACLES",
    "CTC",
    "DEAD",
    "DERIVED",
    "ORACLES",
    "UNIT",
    "Alignment",
    "Assignment",
    "Builder",
    "CardinalitySubset",
    "Categorical",
    "Categories",
    "Constituency",
    "Derivations",
    "DerivedOracle",
    "DistinctSamplingOracle",
    "DrawnSet",
    "EditAlignment",
    "EnumerableOracle",
    "Examples",
    "FactorisedOracle",
    "Grammar",
    "IndependentCategoricals",
    "KBestOracle",
    "LabelledConstituency",
    "LabelledProjectiveTree",
    "LinearChain",
    "MarginalOracle",
    "Oracle",
    "PolicyOracle",
    "ProjectionOracle",
    "ProjectiveTree",
    "RelaxedOracle",
    "SamplingOracle",
    "SecondOrderChain",
    "SeedBlocks",
    "SemiMarkov",
    "ShiftReduce",
    "SpanningTree",
    "SparseSolution",
    "Subset",
    "SubsetOracle",
    "TiedChain",
    "TiedSemiMarkov",
    "WarmStart",
    "make_oracle",
    "soft_dtw_divergence",
]
