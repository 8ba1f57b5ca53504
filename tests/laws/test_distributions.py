import copy
import pickle

import pytest
import torch
from torch.distributions import Distribution, kl_divergence

from structgrad import distributions
from structgrad.distributions import OracleDistribution, StructureDistribution
from structgrad.oracles import ORACLES, KBestOracle, MarginalOracle
from tests.helpers import GENERIC_CASES, OracleCase, make_scores, seeded

EACH = pytest.mark.parametrize("case", GENERIC_CASES, ids=str)


def law(case: OracleCase, rows: int = 2, seed: int = 0) -> StructureDistribution:
    return StructureDistribution(case.oracle, make_scores(case, 1.0, rows, seed), validate_args=True)


@EACH
def test_it_agrees_with_the_sum_over_its_support(case: OracleCase) -> None:
    p, q = law(case), law(case, seed=1)
    listed = p.enumerate_support()
    assert listed.shape == (case.oracle.count(case.event), 2, *case.event)
    log_probs, others = p.log_prob(listed), q.log_prob(listed)
    probs = log_probs.exp()
    torch.testing.assert_close(probs.sum(0), torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(p.entropy(), -(probs * log_probs).sum(0))
    torch.testing.assert_close(kl_divergence(p, q), (probs * (log_probs - others)).sum(0))
    torch.testing.assert_close(p.cross_entropy(q), -(probs * others).sum(0))
    weights = probs.reshape(*probs.shape, *[1] * len(case.event))
    torch.testing.assert_close(p.mean, (weights * listed).sum(0))
    assert torch.equal(p.log_prob(p.mode), log_probs.max(0).values)
    if isinstance(case.oracle, KBestOracle) and len(listed) > 1:
        torch.testing.assert_close(p.log_prob(p.topk(2)), log_probs.sort(0, descending=True).values[:2])


@EACH
def test_it_behaves_as_a_distribution_of_torch(case: OracleCase) -> None:
    p = law(case)
    assert isinstance(p, Distribution)
    assert (p.batch_shape, p.event_shape) == ((2,), case.event)
    torch.manual_seed(0)
    drawn = p.sample((3, 2))
    torch.manual_seed(0)
    assert torch.equal(drawn, p.sample((3, 2)))
    assert torch.equal(p.sample((2,), generator=seeded()), p.sample((2,), generator=seeded()))
    assert drawn.shape == (3, 2, 2, *case.event)
    assert p.sample((0,)).shape == (0, 2, *case.event)
    assert p.support.check(drawn).all()
    assert law(case, rows=0).log_prob(law(case, rows=0).sample((3,))).shape == (3, 0)
    wider = p.expand((3, 2))
    assert wider.sample().shape == (3, 2, *case.event)
    torch.testing.assert_close(wider.entropy(), p.entropy().expand(3, 2))
    for copied in (copy.deepcopy(p), pickle.loads(pickle.dumps(p))):
        assert torch.equal(copied.log_prob(drawn), p.log_prob(drawn))


@EACH
def test_only_structures_are_in_the_support(case: OracleCase) -> None:
    p, listed = law(case), law(case).enumerate_support(expand=False)
    assert p.support.check(listed).all()
    wrong = listed[0].clone()
    first = case.oracle.read_mask(case.event).nonzero()[0]
    wrong[(..., *first)] = 1 - wrong[(..., *first)]
    expected = any(torch.equal(wrong[0], structure) for structure in listed[:, 0])
    assert bool(p.support.check(wrong)) == expected
    with pytest.raises(ValueError, match="Expected value argument"):
        p.log_prob(torch.full(case.event, 7.0, dtype=torch.float64))


def test_lengths_are_those_of_the_items() -> None:
    scores, lengths = torch.randn(3, 4, 2, 2, dtype=torch.float64, generator=seeded()), torch.tensor([4, 2, 3])
    p = distributions.LinearChain(scores, lengths=lengths, validate_args=True)
    q = distributions.LinearChain(scores.flip(0), lengths=lengths)
    drawn = p.sample((5,))
    for item, length in enumerate(lengths.tolist()):
        alone, other = (distributions.LinearChain(each.scores[item, :length]) for each in (p, q))
        torch.testing.assert_close(p.log_prob(drawn)[:, item], alone.log_prob(drawn[:, item, :length]))
        torch.testing.assert_close(kl_divergence(p, q)[item], kl_divergence(alone, other))
    torch.testing.assert_close(p.expand((2, 3)).log_partition()[1], p.log_partition())
    with pytest.raises(NotImplementedError, match="with lengths"):
        p.enumerate_support()


def test_every_oracle_has_a_class_of_its_name() -> None:
    named = {each.structure for each in vars(distributions).values() if isinstance(each, type) and hasattr(each, "structure")}
    assert named == set(ORACLES.values())
    assert all(getattr(distributions, oracle.__name__).structure is oracle for oracle in named)
    assert issubclass(distributions.Subset, OracleDistribution)


def test_what_an_oracle_cannot_do_is_said() -> None:
    p = distributions.Subset(torch.zeros(3), k=2)
    with pytest.raises(NotImplementedError, match=r"laws of Subset\(k=2\) and Subset\(k=1\)"):
        kl_divergence(p, distributions.Subset(torch.zeros(3), k=1))
    chain = distributions.TiedChain(torch.zeros(4, 2))
    with pytest.raises(NotImplementedError, match="some parts of tied_chain are counts"):
        _ = chain.variance
    with pytest.raises(ValueError, match="scores of list"):
        distributions.Subset([0.0, 1.0], k=1)  # type: ignore[arg-type]
    assert not isinstance(p.oracle, str)
    assert isinstance(StructureDistribution("subset[k=2]", torch.zeros(3)).oracle, MarginalOracle)
