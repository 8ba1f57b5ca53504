"""Derivatives of every order are right, and under `torch.func` every operation is what it is without: mapped rows are a batch."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, func
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.autograd.functional import jacobian as autograd_jacobian, jvp

from structgrad.oracles import LinearChain, SeedBlocks
from structgrad.oracles.capabilities import RelaxedOracle
from tests.covering import sampled
from tests.helpers import GENERIC_CASES, OracleCase, enumerate_truth, launched_rows, make_scores, seeded, structures
from tests.laws.test_oracle_batches import lengths_of
from tests.oracle_operations import DIFFERENTIABLE, OPERATIONS, RANDOM, assert_same, operations_of

cases = pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
gibbs = pytest.mark.parametrize("case", [case for case in GENERIC_CASES if case.potentials is None], ids=str)
relaxed = pytest.mark.parametrize("case", [case for case in GENERIC_CASES if isinstance(case.oracle, RelaxedOracle)], ids=str)

EXACT = tuple(name for name in OPERATIONS if name not in RANDOM)
SMOOTH = ("log_partition", "marginals", "entropy")


# Derivatives.


@cases
def test_second_derivatives_by_finite_differences(case: OracleCase) -> None:
    """Values are compared with the enumeration, and first derivatives too, by `test_oracle_laws`."""
    scores = make_scores(case, 1.0, rows=2).requires_grad_()
    for operation in SMOOTH:
        assert gradgradcheck(getattr(case.oracle, operation), (scores,), fast_mode=True), operation
    forbidden = make_scores(case, "masked", rows=2, seed=3) == -math.inf
    feasible = case.oracle.feasible(scores.masked_fill(forbidden, -math.inf))
    for operation in SMOOTH:
        compute = lambda theta, name=operation: getattr(case.oracle, name)(theta.masked_fill(forbidden, -math.inf))[feasible]  # noqa: E731
        assert not bool(feasible.any()) or gradcheck(compute, (scores,), fast_mode=True), operation
        assert not bool(feasible.any()) or gradgradcheck(compute, (scores,), fast_mode=True), operation


@cases
def test_derivatives_of_probabilities_and_third_ones(case: OracleCase) -> None:
    scores, some = make_scores(case, 1.0, rows=2).requires_grad_(), structures(case)[:3].unsqueeze(1)
    assert gradcheck(lambda theta: case.oracle.log_prob(some, theta), (scores,), fast_mode=True)
    assert gradgradcheck(lambda theta: case.oracle.log_prob(some, theta), (scores,), fast_mode=True)

    def product(theta: Tensor) -> Tensor:
        (result,) = torch.autograd.grad(case.oracle.marginals(theta).square().sum(), theta, create_graph=True)
        return result

    assert gradgradcheck(product, (scores[:1].detach().requires_grad_(),), fast_mode=True)
    (gradient,) = torch.autograd.grad(case.oracle.marginals(scores).square().sum(), scores)
    assert not gradient.requires_grad, "a plain backward keeps no graph"


@gibbs
def test_the_hessian_of_the_log_partition_is_the_covariance(case: OracleCase) -> None:
    scores = make_scores(case, 1.0, rows=3)
    expected = enumerate_truth(case, scores).covariance.reshape(3, *case.event, *case.event)
    for transform in (func.hessian(case.oracle.log_partition), func.jacrev(case.oracle.marginals), func.jacfwd(case.oracle.marginals)):
        torch.testing.assert_close(func.vmap(transform)(scores), expected, rtol=1e-9, atol=1e-10)


@cases
def test_calls_of_kernels(case: OracleCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log-partition and its gradient take one, and a Jacobian takes one for all directions."""
    sizes, scores = launched_rows(monkeypatch), make_scores(case, 1.0, rows=3)
    if case.potentials is None:
        case.oracle.log_partition(scores.clone().requires_grad_()).sum().backward()
        assert len(sizes) == (case.oracle.kernel is not None)
    sizes.clear()
    func.vmap(func.grad(case.oracle.log_partition))(scores)
    assert set(sizes) <= {3}
    sizes.clear()
    func.jacrev(case.oracle.marginals)(scores[0])
    assert set(sizes) <= {1, scores[0].numel()}
    assert sum(size > 1 for size in sizes) <= 1


# Under `torch.func`.


def curved(case: OracleCase, operation: str) -> Callable[..., Tensor]:
    """A number whose derivatives of every order are those of an operation."""
    return lambda scores: OPERATIONS[operation](case.oracle, scores).nan_to_num(neginf=0).sin().sum()


@cases
def test_mapped_rows_are_single_calls(case: OracleCase) -> None:
    for regime in (1.0, "masked"):
        scores = make_scores(case, regime, rows=4)
        deep = scores.unflatten(0, (2, 2))
        for operation in sampled(operations_of(case.oracle, EXACT), 8):
            compute = partial(OPERATIONS[operation], case.oracle)
            single = torch.stack([compute(row) for row in scores])
            assert_same(func.vmap(compute)(scores), single, operation)
            assert_same(func.vmap(compute, in_dims=1, out_dims=-1)(scores.transpose(0, 1)), single.movedim(0, -1), operation)
            for mapped in (func.vmap(func.vmap(compute)), func.vmap(compute)):
                assert_same(mapped(deep), single.unflatten(0, (2, 2)), operation)
    known = []
    func.vmap(lambda row: known.append(case.oracle.forbids_nothing(row)) or row)(scores)  # type: ignore[func-returns-value]
    assert known == [False]


@cases
def test_lengths_are_mapped_or_not(case: OracleCase) -> None:
    scores, lengths = make_scores(case, 1.0, rows=4), lengths_of(case, (4,), "each")["lengths"]
    deep = scores.unflatten(0, (2, 2))
    for operation in sampled(operations_of(case.oracle, EXACT), 8):

        def compute(scores: Tensor, lengths: Tensor, operation: str = operation) -> Tensor:
            return OPERATIONS[operation](case.oracle, scores, lengths=lengths)

        each, one = compute(scores, lengths), compute(scores, lengths[0])
        assert_same(func.vmap(compute)(scores, lengths), each, operation)
        assert_same(func.vmap(func.vmap(compute))(deep, lengths.unflatten(0, (2, 2))).flatten(0, 1), each, operation)
        assert_same(func.vmap(compute, in_dims=(0, None))(scores, lengths[0]), one, operation)
        assert_same(func.vmap(compute, in_dims=(0, None))(deep, lengths[0]).flatten(0, 1), one, operation)
        repeated = compute(scores[:1].expand_as(scores), lengths)
        assert_same(func.vmap(compute, in_dims=(None, 0))(scores[0], lengths), repeated, operation)
    for kind in ("each", "one"):
        given = lengths_of(case, (4,), kind)["lengths"].expand(lengths.shape)
        leaf = scores.clone().requires_grad_()
        assert torch.equal(func.vmap(case.oracle.pad)(scores, given), case.oracle.pad(scores, given))
        total = lambda scores, lengths: case.oracle.pad(scores, lengths).clamp(min=0).sum()  # noqa: E731
        assert torch.equal(func.vmap(func.grad(total))(scores, given), torch.autograd.grad(total(leaf, given), leaf)[0])


def jacobian(compute: Callable[[Tensor], Tensor], row: Tensor) -> Tensor:
    """By autograd, of as many equal rows of a batch as there are results, each for its own: a loop over these takes half of a law."""
    shape = compute(row).shape
    leaf = row.expand(shape.numel(), *row.shape).clone().requires_grad_()
    (gradient,) = torch.autograd.grad(compute(leaf).reshape(len(leaf), -1).diagonal().sum(), leaf)
    return gradient.reshape(*shape, *row.shape)


def hessian(value: Callable[[Tensor], Tensor], row: Tensor) -> Tensor:
    """By autograd in the same way, of a number that is a sum over rows."""
    leaf = row.expand(row.numel(), *row.shape).clone().requires_grad_()
    (gradient,) = torch.autograd.grad(value(leaf), leaf, create_graph=True)
    (second,) = torch.autograd.grad(gradient.flatten(1).diagonal().sum(), leaf)
    return second.reshape(*row.shape, *row.shape)


@cases
def test_derivatives_are_those_of_autograd(case: OracleCase) -> None:
    """Gradients, Jacobians, products with directions and Hessians."""
    scores, along = make_scores(case, 1.0, rows=2), make_scores(case, 1.0, rows=2, seed=1)
    for operation in sampled(operations_of(case.oracle, DIFFERENTIABLE), 3):
        value, compute = curved(case, operation), partial(OPERATIONS[operation], case.oracle)
        for rows in (scores, make_scores(case, "masked", rows=3)):
            leaf = rows.clone().requires_grad_()
            (expected,) = torch.autograd.grad(torch.stack([value(row) for row in leaf]).sum(), leaf)
            assert_same(func.grad(value)(rows[0]), expected[0], operation)
            assert_same(func.vmap(func.grad(value))(rows), expected, operation)
            assert_same(func.grad(lambda rows, value=value: func.vmap(value)(rows).sum())(rows), expected, operation)
            assert_same(torch.autograd.grad(func.vmap(value)(leaf).sum(), leaf)[0], expected, operation)
        expected = torch.stack([jacobian(compute, row) for row in scores])
        for transform in (func.jacrev, func.jacfwd):
            assert_same(func.vmap(transform(compute))(scores), expected, operation)
        assert_same(func.jacrev(compute)(scores[0]), expected[0], operation)
        assert_same(func.jvp(compute, (scores,), (along,))[1], jvp(compute, scores, along)[1], operation)
        shared = lambda row, compute=compute: compute(row.expand(2, *case.event))  # noqa: E731
        assert_same(func.jvp(shared, (scores[0],), (along[0],))[1], jvp(shared, scores[0], along[0])[1], operation)
        second = hessian(value, scores[0])
        assert_same(func.hessian(value)(scores[0]), second, operation, 1e-9)
        assert_same(func.jacrev(func.jacrev(value))(scores[0]), second, operation, 1e-9)
        with forward_ad.dual_level(), pytest.raises(ValueError, match=r"got a dual number of torch\.autograd\.forward_ad"):
            compute(forward_ad.make_dual(scores, scores))
        with pytest.raises(ValueError, match=r"or torch\.func\.linearize; expected a plain tensor: use torch\.func\.jvp"):
            func.linearize(compute, scores)


def _lost_in_inference_mode() -> bool:
    """Whether torch's own derivatives are 0 there, as they were in 2.8."""
    with torch.inference_mode():
        return float(func.grad(torch.square)(torch.tensor(1.0))) == 0


@cases
def test_gradient_modes(case: OracleCase) -> None:
    """Values need none, also where autograd is used on the way; derivatives of `torch.func` are found in inference mode."""
    scores = make_scores(case, 1.0, rows=3)
    for operation in sampled(operations_of(case.oracle), 10):
        compute, value = partial(OPERATIONS[operation], case.oracle), curved(case, operation)
        expected = compute(scores)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                assert_same(compute(scores.clone()), expected, operation)
        if operation in DIFFERENTIABLE and not _lost_in_inference_mode():
            gradients = func.vmap(func.grad(value))(scores)
            with torch.inference_mode():
                assert_same(func.vmap(func.grad(value))(scores), gradients, operation)


@cases
def test_structures_and_scores_may_have_batches_of_their_own(case: OracleCase) -> None:
    """Lists of structures come before the batch."""
    oracle, scores = case.oracle, make_scores(case, "masked", rows=6)[1:]
    z = oracle.sample(scores, 4, generator=seeded())
    for compute in (oracle.score, oracle.log_prob):
        assert_same(func.vmap(compute, in_dims=(1, 0), out_dims=1)(z, scores), compute(z, scores), compute.__name__)
        assert_same(func.vmap(compute, in_dims=(None, 0))(z[:, 0], scores), compute(z[:, 0], scores.unsqueeze(1)), compute.__name__)
        assert_same(func.vmap(compute, in_dims=(1, None), out_dims=1)(z, scores[1]), compute(z, scores[1]), compute.__name__)
    assert_same(func.vmap(oracle.kl)(scores, scores / 2), oracle.kl(scores, scores / 2), "kl")
    assert_same(func.vmap(oracle.kl, in_dims=(0, None))(scores, scores[0]), oracle.kl(scores, scores[0].expand_as(scores)), "kl")
    deep, generator = make_scores(case, 1.0, rows=6).unflatten(0, (2, 3)), seeded()
    assert torch.equal(func.vmap(lambda rows: oracle.kbest(rows, 2), out_dims=1)(deep), oracle.kbest(deep, 2))
    mapped = func.vmap(lambda rows: oracle.sample(rows, 5, generator=generator), out_dims=1, randomness="different")
    assert torch.equal(mapped(deep), oracle.sample(deep, 5, generator=seeded()))


@cases
def test_mapped_rows_draw_what_the_rows_of_a_batch_draw(case: OracleCase) -> None:
    scores = make_scores(case, 1.0, rows=4)
    for make in (seeded, lambda: SeedBlocks((3, 1, 4, 1), 1)):
        generator, other = make(), make()
        mapped = func.vmap(lambda row, generator=generator: case.oracle.sample(row, generator=generator), randomness="different")
        for _ in range(2):
            assert torch.equal(mapped(scores), case.oracle.sample(scores, generator=other))


@relaxed
def test_derivatives_of_a_relaxed_sample_are_at_its_own_draw(case: OracleCase) -> None:
    scores, weights = make_scores(case, 1.0, rows=3), make_scores(case, 1.0, rows=1, seed=3)[0]

    def value(row: Tensor, generator: torch.Generator) -> Tensor:
        return (case.oracle.relaxed_sample(row, 0.7, generator=generator) * weights).flatten(-len(case.event)).sum(-1).sin()

    leaf, generator = scores.clone().requires_grad_(), seeded()
    (expected,) = torch.autograd.grad(value(leaf, seeded()).sum(), leaf)
    assert_same(func.vmap(func.grad(lambda row: value(row, generator)), randomness="different")(scores), expected, "grad")
    assert not torch.equal(generator.get_state(), seeded().get_state())
    expected = autograd_jacobian(lambda row: case.oracle.relaxed_sample(row, generator=seeded()), scores[0])  # rows would differ in noise
    for transform, named in ((func.jacrev, {}), (func.jacfwd, {"randomness": "different"})):
        sample = partial(case.oracle.relaxed_sample, generator=seeded())
        assert_same(transform(sample, **named)(scores[0]), expected, transform.__name__)


def test_parameters_of_a_model_are_differentiated_for_every_row() -> None:
    """Per-sample gradients, which autograd gives row by row."""
    model, inputs = torch.nn.Linear(3, 4, dtype=torch.float64), make_scores(GENERIC_CASES[0], 1.0, rows=5)[:, :3]
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], row: Tensor) -> Tensor:
        return LinearChain().log_partition(func.functional_call(model, parameters, (row,)).reshape(1, 2, 2))

    found = func.vmap(func.grad(loss), in_dims=(None, 0))(parameters, inputs)
    for place, row in enumerate(inputs):
        gradients = torch.autograd.grad(LinearChain().log_partition(model(row).reshape(1, 2, 2)), tuple(model.parameters()))
        for ours, theirs in zip(found.values(), gradients, strict=True):
            assert_same(ours[place], theirs, "log_partition")
