"""Under `torch.func` every operation is what it is without: mapped rows are a batch, derivatives those of autograd, to any order."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import pytest
import torch
from torch import Tensor, func
from torch.autograd import forward_ad
from torch.autograd.functional import jacobian as autograd_jacobian
from torch.autograd.functional import jvp

from structgrad.oracles import Categorical, LinearChain, SeedBlocks
from structgrad.oracles.capabilities import RelaxedOracle
from tests.helpers import GENERIC_CASES, OracleCase, enumerate_truth, launched_rows, make_scores, seeded
from tests.laws.test_oracle_batches import lengths_of
from tests.oracle_operations import DIFFERENTIABLE, OPERATIONS, RANDOM, assert_same, operations_of

cases = pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
regimes = pytest.mark.parametrize("regime", [1.0, "masked"], ids=str)
gibbs = pytest.mark.parametrize("case", [case for case in GENERIC_CASES if case.potentials is None], ids=str)
relaxed = pytest.mark.parametrize("case", [case for case in GENERIC_CASES if isinstance(case.oracle, RelaxedOracle)], ids=str)

EXACT = tuple(name for name in OPERATIONS if name not in RANDOM)


def curved(case: OracleCase, operation: str) -> Callable[..., Tensor]:
    """A number whose derivatives of every order are those of an operation."""
    return lambda scores: OPERATIONS[operation](case.oracle, scores).nan_to_num(neginf=0).sin().sum()


def of_lengths(compute: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """An operation as a function of scores and lengths."""
    return lambda scores, lengths: compute(scores, lengths=lengths)


@regimes
@cases
def test_mapped_rows_are_single_calls(case: OracleCase, regime: float | str) -> None:
    scores = make_scores(case, regime, rows=4)
    for operation in operations_of(case.oracle, EXACT):
        compute = partial(OPERATIONS[operation], case.oracle)
        single = torch.stack([compute(row) for row in scores])
        assert_same(func.vmap(compute)(scores), single, operation)
        assert_same(func.vmap(compute, in_dims=1, out_dims=-1)(scores.transpose(0, 1)), single.movedim(0, -1), operation)
        assert_same(func.vmap(func.vmap(compute))(scores.unflatten(0, (2, 2))), single.unflatten(0, (2, 2)), operation)
        assert_same(func.vmap(compute)(scores.unflatten(0, (2, 2))), single.unflatten(0, (2, 2)), operation)


@cases
def test_lengths_are_mapped_or_not(case: OracleCase) -> None:
    scores, lengths = make_scores(case, 1.0, rows=4), lengths_of(case, (4,), "each")["lengths"]
    for operation in operations_of(case.oracle, EXACT):
        compute = of_lengths(partial(OPERATIONS[operation], case.oracle))
        each = compute(scores, lengths)
        assert_same(func.vmap(compute)(scores, lengths), each, operation)
        assert_same(func.vmap(func.vmap(compute))(scores.unflatten(0, (2, 2)), lengths.unflatten(0, (2, 2))).flatten(0, 1), each, operation)
        one = compute(scores, lengths[0])
        assert_same(func.vmap(compute, in_dims=(0, None))(scores, lengths[0]), one, operation)
        assert_same(func.vmap(compute, in_dims=(0, None))(scores.unflatten(0, (2, 2)), lengths[0]).flatten(0, 1), one, operation)
        repeated = compute(scores[:1].expand_as(scores), lengths)
        assert_same(func.vmap(compute, in_dims=(None, 0))(scores[0], lengths), repeated, operation)


@regimes
@cases
def test_gradients_are_those_of_autograd(case: OracleCase, regime: float | str) -> None:
    scores = make_scores(case, regime, rows=3)
    for operation in operations_of(case.oracle, DIFFERENTIABLE):
        value, leaf = curved(case, operation), scores.clone().requires_grad_()
        (expected,) = torch.autograd.grad(torch.stack([value(row) for row in leaf]).sum(), leaf)
        assert_same(torch.stack([func.grad(value)(row) for row in scores]), expected, operation)
        assert_same(func.vmap(func.grad(value))(scores), expected, operation)
        assert_same(func.grad(lambda rows, value=value: func.vmap(value)(rows).sum())(scores), expected, operation)
        (outside,) = torch.autograd.grad(func.vmap(value)(leaf).sum(), leaf)
        assert_same(outside, expected, operation)


def jacobian(compute: Callable[[Tensor], Tensor], row: Tensor) -> Tensor:
    """By autograd, of as many equal rows of a batch as there are results, each for its own: a loop over these takes half of a law."""
    shape = compute(row).shape
    leaf = row.expand(shape.numel(), *row.shape).clone().requires_grad_()
    (gradient,) = torch.autograd.grad(compute(leaf).reshape(len(leaf), -1).diagonal().sum(), leaf)
    return gradient.reshape(*shape, *row.shape)


def hessian(value: Callable[[Tensor], Tensor], row: Tensor) -> Tensor:
    """By autograd, likewise, of a number that is a sum over rows."""
    leaf = row.expand(row.numel(), *row.shape).clone().requires_grad_()
    (gradient,) = torch.autograd.grad(value(leaf), leaf, create_graph=True)
    (second,) = torch.autograd.grad(gradient.flatten(1).diagonal().sum(), leaf)
    return second.reshape(*row.shape, *row.shape)


@cases
def test_jacobians_are_those_of_autograd(case: OracleCase) -> None:
    scores = make_scores(case, 1.0, rows=2)
    for operation in operations_of(case.oracle, DIFFERENTIABLE):
        compute = partial(OPERATIONS[operation], case.oracle)
        expected = torch.stack([jacobian(compute, row) for row in scores])
        for transform in (func.jacrev, func.jacfwd):
            assert_same(transform(compute)(scores[0]), expected[0], operation)
            assert_same(func.vmap(transform(compute))(scores), expected, operation)


@cases
def test_second_derivatives_are_those_of_autograd(case: OracleCase) -> None:
    scores = make_scores(case, 1.0, rows=1)[0]
    for operation in operations_of(case.oracle, DIFFERENTIABLE):
        value = curved(case, operation)
        expected = hessian(value, scores)
        assert_same(func.hessian(value)(scores), expected, operation, 1e-9)
        assert_same(func.jacrev(func.jacrev(value))(scores), expected, operation, 1e-9)


@gibbs
def test_the_hessian_of_the_log_partition_is_the_covariance(case: OracleCase) -> None:
    scores = make_scores(case, 1.0, rows=3)
    expected = enumerate_truth(case, scores).covariance.reshape(3, *case.event, *case.event)
    for transform in (func.hessian(case.oracle.log_partition), func.jacrev(case.oracle.marginals), func.jacfwd(case.oracle.marginals)):
        torch.testing.assert_close(func.vmap(transform)(scores), expected, rtol=1e-9, atol=1e-10)


@cases
def test_a_jacobian_takes_one_call_of_a_kernel_for_all_directions(case: OracleCase, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = launched_rows(monkeypatch)
    scores = make_scores(case, 1.0, rows=3)
    func.vmap(func.grad(case.oracle.log_partition))(scores)
    assert set(sizes) <= {3}
    sizes.clear()
    func.jacrev(case.oracle.marginals)(scores[0])
    assert set(sizes) <= {1, scores[0].numel()}
    assert sum(size > 1 for size in sizes) <= 1


@cases
def test_padded_scores_are_those_of_a_batch(case: OracleCase) -> None:
    scores = make_scores(case, 1.0, rows=4)
    for kind in ("each", "one"):
        lengths = lengths_of(case, (4,), kind)["lengths"].expand(lengths_of(case, (4,), "each")["lengths"].shape)
        expected, leaf = case.oracle.pad(scores, lengths), scores.clone().requires_grad_()
        assert torch.equal(func.vmap(case.oracle.pad)(scores, lengths), expected)
        total = lambda scores, lengths: case.oracle.pad(scores, lengths).clamp(min=0).sum()  # noqa: E731
        (gradient,) = torch.autograd.grad(total(leaf, lengths), leaf)
        assert torch.equal(func.vmap(func.grad(total))(scores, lengths), gradient)


@cases
def test_under_a_transform_nothing_is_known_to_be_allowed(case: OracleCase) -> None:
    known = []
    func.vmap(lambda row: known.append(case.oracle.forbids_nothing(row)) or row)(make_scores(case, 1.0, rows=2))  # type: ignore[func-returns-value]
    assert known == [False]


@cases
def test_directions_are_pushed_forward(case: OracleCase) -> None:
    scores, along = make_scores(case, 1.0, rows=3), make_scores(case, 1.0, rows=3, seed=1)
    for operation in operations_of(case.oracle, DIFFERENTIABLE):
        compute = partial(OPERATIONS[operation], case.oracle)
        _, expected = jvp(compute, scores, along)
        assert_same(func.jvp(compute, (scores,), (along,))[1], expected, operation)
        shared = lambda row, compute=compute: compute(row.expand(2, *case.event))  # noqa: E731
        assert_same(func.jvp(shared, (scores[0],), (along[0],))[1], jvp(shared, scores[0], along[0])[1], operation)


def _lost_in_inference_mode() -> bool:
    """Whether torch's own derivatives are 0 there, as they were in 2.8."""
    with torch.inference_mode():
        return float(func.grad(torch.square)(torch.tensor(1.0))) == 0


@cases
@pytest.mark.skipif(_lost_in_inference_mode(), reason="this torch has no derivatives in inference mode")
def test_derivatives_are_found_in_inference_mode(case: OracleCase) -> None:
    scores = make_scores(case, 1.0, rows=3)
    for operation in operations_of(case.oracle, DIFFERENTIABLE):
        value = curved(case, operation)
        expected = func.vmap(func.grad(value))(scores)
        with torch.inference_mode():
            assert_same(func.vmap(func.grad(value))(scores), expected, operation)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@cases
def test_values_need_no_gradient_mode(case: OracleCase, mode: Callable[[], AbstractContextManager[None]]) -> None:
    """Whatever asks autograd on its way."""
    scores = make_scores(case, 1.0, rows=3)
    for operation in operations_of(case.oracle):
        compute = partial(OPERATIONS[operation], case.oracle)
        expected = compute(scores)
        with mode():
            assert_same(compute(scores.clone()), expected, operation)


@cases
def test_dual_numbers_outside_of_torch_func_are_refused(case: OracleCase) -> None:
    scores = make_scores(case, 1.0, rows=2)
    for operation in operations_of(case.oracle, DIFFERENTIABLE):
        compute = partial(OPERATIONS[operation], case.oracle)
        with forward_ad.dual_level(), pytest.raises(ValueError, match=r"got a dual number of torch\.autograd\.forward_ad"):
            compute(forward_ad.make_dual(scores, scores))
        with pytest.raises(ValueError, match=r"or torch\.func\.linearize; expected a plain tensor: use torch\.func\.jvp"):
            func.linearize(compute, scores)


@cases
def test_structures_and_scores_may_have_batches_of_their_own(case: OracleCase) -> None:
    oracle, scores = case.oracle, make_scores(case, "masked", rows=6)[1:]
    z = oracle.sample(scores, 4, generator=seeded())
    for compute in (oracle.score, oracle.log_prob):
        assert_same(func.vmap(compute, in_dims=(1, 0), out_dims=1)(z, scores), compute(z, scores), compute.__name__)
        assert_same(func.vmap(compute, in_dims=(None, 0))(z[:, 0], scores), compute(z[:, 0], scores.unsqueeze(1)), compute.__name__)
        assert_same(func.vmap(compute, in_dims=(1, None), out_dims=1)(z, scores[1]), compute(z, scores[1]), compute.__name__)
    assert_same(func.vmap(oracle.kl)(scores, scores / 2), oracle.kl(scores, scores / 2), "kl")
    assert_same(func.vmap(oracle.kl, in_dims=(0, None))(scores, scores[0]), oracle.kl(scores, scores[0].expand_as(scores)), "kl")


@cases
def test_lists_of_structures_come_before_the_batch(case: OracleCase) -> None:
    oracle, scores = case.oracle, make_scores(case, 1.0, rows=6).unflatten(0, (2, 3))
    listed, drawn = oracle.kbest(scores, 2), oracle.sample(scores, 5, generator=seeded())
    assert torch.equal(func.vmap(lambda rows: oracle.kbest(rows, 2), out_dims=1)(scores), listed)
    generator = seeded()
    mapped = func.vmap(lambda rows: oracle.sample(rows, 5, generator=generator), out_dims=1, randomness="different")
    assert torch.equal(mapped(scores), drawn)


@cases
def test_mapped_rows_draw_what_the_rows_of_a_batch_draw(case: OracleCase) -> None:
    scores = make_scores(case, 1.0, rows=4)
    for make in (seeded, lambda: SeedBlocks((3, 1, 4, 1), 1)):
        generator, other = make(), make()
        mapped = func.vmap(lambda row, generator=generator: case.oracle.sample(row, generator=generator), randomness="different")
        for _ in range(2):
            assert torch.equal(mapped(scores), case.oracle.sample(scores, generator=other))


@pytest.mark.parametrize("randomness", ["error", "same"])
def test_mapped_rows_draw_nothing_unless_told_how(randomness: str) -> None:
    message = f'`sample` got randomness="{randomness}" from torch.func.vmap; expected "different"'
    with pytest.raises(ValueError, match=message):
        func.vmap(lambda row: Categorical().sample(row, generator=seeded()), randomness=randomness)(torch.zeros(3, 4))


@relaxed
def test_derivatives_of_a_relaxed_sample_are_at_its_own_draw(case: OracleCase) -> None:
    scores, weights = make_scores(case, 1.0, rows=3), make_scores(case, 1.0, rows=1, seed=3)[0]

    def value(row: Tensor, generator: torch.Generator) -> Tensor:
        return (case.oracle.relaxed_sample(row, 0.7, generator=generator) * weights).flatten(-len(case.event)).sum(-1).sin()

    leaf, generator = scores.clone().requires_grad_(), seeded()
    (expected,) = torch.autograd.grad(value(leaf, seeded()).sum(), leaf)
    assert_same(func.vmap(func.grad(lambda row: value(row, generator)), randomness="different")(scores), expected, "grad")
    after = generator.get_state()
    assert not torch.equal(after, seeded().get_state())
    expected = autograd_jacobian(lambda row: case.oracle.relaxed_sample(row, generator=seeded()), scores[0])  # rows would differ in noise
    for transform, named in ((func.jacrev, {}), (func.jacfwd, {"randomness": "different"})):
        sample = partial(case.oracle.relaxed_sample, generator=seeded())
        assert_same(transform(sample, **named)(scores[0]), expected, transform.__name__)


@cases
def test_scores_are_looked_at_under_a_transform_too(case: OracleCase) -> None:
    scores = make_scores(case, 1.0, rows=3)
    scores[1] = math.nan
    for transform in (func.vmap, lambda compute: func.grad(lambda rows: compute(rows).sum())):
        with pytest.raises(ValueError, match="`log_partition` got scores with NaN"):
            transform(case.oracle.log_partition)(scores)


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (lambda row: LinearChain().argmax(row[..., :2]), "`argmax` got event shape"),
        (lambda row: LinearChain().argmax(row[0, 0, 0]), "`argmax` got scores of shape"),
        (lambda row: LinearChain().argmax(row.long()), "`argmax` got scores of dtype torch.int64"),
        (lambda row: LinearChain().argmax([row]), "`argmax` got scores of list"),
        (lambda row: LinearChain().argmax(row, lengths=torch.ones(7).long()), "`argmax` got lengths: torch.int64 of shape"),
        (lambda row: LinearChain().argmax(row, lengths=torch.tensor(9)), "`lengths` must be between 1 and .*, got 9"),
        (lambda row: LinearChain().argmax(row, lengths=[1]), "`argmax` got lengths: list"),
        (lambda row: LinearChain().kbest(row, 0), "`kbest` got k=0"),
    ],
)
def test_what_is_refused_is_refused_under_a_transform(compute: Callable[[Tensor], Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        func.vmap(compute)(torch.zeros(2, 2, 3, 3, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@cases
def test_results_have_the_dtype_of_the_scores(case: OracleCase, dtype: torch.dtype) -> None:
    scores = make_scores(case, 1.0, rows=2).to(dtype)
    assert func.vmap(case.oracle.marginals)(scores).dtype == dtype
    assert func.vmap(func.grad(case.oracle.log_partition))(scores).dtype == dtype
    assert torch.equal(func.vmap(case.oracle.marginals)(scores), case.oracle.marginals(scores))


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
