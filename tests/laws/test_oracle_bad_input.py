"""Bad input gets one sentence that names the call; tensors of every kind get the right answer or such a sentence."""

import functools
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.estimators import ESTIMATORS, make_estimator
from structgrad.oracles import SpanningTree, Subset
from tests.covering import sampled
from tests.estimator_cases import numbers
from tests.helpers import GENERIC_CASES, OracleCase, make_scores, seeded, structures
from tests.oracle_operations import DIFFERENTIABLE, OPERATIONS, RANDOM, operations_of
from tests.training_cases import estimator_of, first_space

cases = pytest.mark.parametrize("case", GENERIC_CASES, ids=str)

CALLS: dict[str, Callable[[OracleCase, Any], Any]] = {
    **{
        name: lambda case, scores, name=name: getattr(case.oracle, name)(scores)
        for name in ("argmax", "log_partition", "marginals", "entropy")
    },
    "log_prob": lambda case, scores: case.oracle.log_prob(structures(case)[0], scores),
    "sample": lambda case, scores: case.oracle.sample(scores, generator=seeded()),
    "project": lambda case, scores: case.oracle.project(scores),
    "free_parts": lambda case, scores: case.oracle.free_parts(scores),
}


@cases
def test_scores_that_are_none(case: OracleCase) -> None:
    """Under a transform too."""
    not_finite = make_scores(case, 1.0)
    not_finite[-1].view(-1)[structures(case).sum(0).flatten().nonzero()[-1]] = math.nan
    wrong: tuple[tuple[Any, str], ...] = (
        ([0.0, 1.0], "got scores of list; expected a floating-point torch.Tensor"),
        (torch.zeros(case.event, dtype=torch.int64), "got scores of dtype torch.int64; expected a floating-point"),
        (torch.zeros(case.event, dtype=torch.float8_e4m3fn), "got scores of dtype torch.float8_e4m3fn; expected a floating-point"),
        (torch.zeros(case.event)[0], rf"got scores of shape \(.*\); expected \[\*batch, \*event\] with {len(case.event)} event"),
        (torch.zeros(3, 0, *case.event[1:]), r"got event shape \(0,.*\); expected at least one part in every dimension"),
        *(
            (bad, r"got scores with NaN or \+inf; expected finite scores, or -inf for a forbidden part")
            for bad in (not_finite, not_finite.nan_to_num(nan=math.inf))
        ),
    )
    for name, call in CALLS.items():
        for scores, message in wrong[: 5 if name == "free_parts" else None]:
            with pytest.raises(ValueError, match=f"`{name}` {message}"):
                call(case, scores)
    for transform in (torch.func.vmap, lambda compute: torch.func.grad(lambda rows: compute(rows).sum())):
        with pytest.raises(ValueError, match="`log_partition` got scores with NaN"):
            transform(case.oracle.log_partition)(not_finite)
    with pytest.raises(ValueError, match=r"`enumerate` got event shape \(0,.*\); expected at least one part in every dimension"):
        case.oracle.enumerate((0, *case.event[1:]))
    with pytest.raises(ValueError, match=r"`enumerate` got event shape \(.*\); expected \((n|length|rows)"):
        case.oracle.enumerate((*case.event, 2))


@cases
def test_structures_that_do_not_fit(case: OracleCase) -> None:
    oracle, scores, best = case.oracle, make_scores(case, 1.0, rows=3), case.oracle.argmax(make_scores(case, 1.0, rows=2))
    indices = torch.zeros(2, *oracle.index_shape(case.event), dtype=torch.long)
    for name, call in (("score", oracle.score), ("log_prob", oracle.log_prob)):
        with pytest.raises(
            ValueError, match=rf"`{name}` got a structure of shape \(.*\) for scores of shape \(.*\); expected the same last"
        ):
            call(torch.zeros(*case.event[:-1], case.event[-1] + 1), torch.zeros(case.event))
        for z, what in ((best, "a structure"), (indices, "indices")):
            message = rf"`{name}` got {what} with the batch \(2,\) for scores with the batch \(3,\); expected"
            with pytest.raises(ValueError, match=message):
                call(z, scores, as_indices=z is indices)
    with pytest.raises(ValueError, match="`sample` got num_samples=0; expected at least 1, or None for one sample without that dimension"):
        oracle.sample(torch.zeros(case.event), 0, generator=seeded())


# Tensors that are no plain ones.


def answered_or_refused(what: str, call: Callable[[Any], Any], values: Tensor, expected: Tensor) -> None:
    """Others without numbers, the numbers that are expected, or one sentence."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kinds = [values.to_sparse(), torch.nested.nested_tensor([*values]), torch.nested.nested_tensor([*values], layout=torch.jagged)]
        kinds += [values.to_sparse_csr()] if values.ndim == 2 else []
    with torch.inference_mode():
        kinds += [values.to("meta"), values.clone()]
    for kind in kinds:
        try:
            found = call(kind)
        except ValueError as error:
            refusal = str(error)
            named = any(word in refusal for word in ("nested", "layout torch.", "meta", "torch.inference_mode"))
            assert " got " in refusal and "\n" not in refusal and named, (what, refusal)  # noqa: PT018
        else:
            assert found.is_meta or torch.equal(found, expected), (what, kind)


@cases
def test_operations_of_unusual_tensors(case: OracleCase) -> None:
    oracle, scores = case.oracle, make_scores(case, 1.0, rows=2)
    best = oracle.argmax(scores)
    calls: dict[str, tuple[Callable[[Any], Any], Tensor]] = {
        name: (functools.partial(OPERATIONS[name], oracle), scores) for name in operations_of(oracle) if name not in ("kl", "kbest")
    }
    calls |= {
        "kl": (lambda given: oracle.kl(given, scores), scores),
        "kl to": (lambda given: oracle.kl(scores, given), scores),
        "kbest": (lambda given: oracle.kbest(given, 1), scores),
        "score of": (lambda z: oracle.score(z, scores), best),
        "log_prob of": (lambda z: oracle.log_prob(z, scores), best),
        "rank": (oracle.rank, best),
        "indices": (oracle.indices, best),
    }
    for name, (call, values) in sampled([*calls.items()], 14):
        answered_or_refused(name, call, values, call(values))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_of_unusual_tensors(name: str) -> None:
    estimator: Any = estimator_of(name)
    oracle, event = first_space(estimator)
    scores = numbers(2, *event)

    def estimate(given: Any) -> Any:
        loss = lambda z: (0.3 * z).flatten(z.ndim - len(event)).sum(-1).square()  # noqa: E731
        return estimator.prepared(oracle, event, seeded()).gradient(loss, oracle, given, generator=seeded())

    expected = estimate(scores)
    answered_or_refused(name, estimate, scores, expected)
    with torch.inference_mode(), pytest.raises(ValueError, match=f"^`{name}` got its surrogate called under torch.inference_mode"):
        estimate(scores)
    with torch.device("meta"):
        assert torch.equal(estimate(scores), expected)


@pytest.mark.parametrize("name", ["ste", "imle", "sparsemap"])
def test_the_call_that_was_made_is_named(name: str) -> None:
    call = lambda scores: make_estimator(name).gradient(lambda z: z.sum((-2, -1)), SpanningTree(), scores, generator=seeded())  # noqa: E731
    with pytest.raises(ValueError, match=f"^`{name}` got scores on the device meta, or under FakeTensorMode, without numbers; expected"):
        call(torch.zeros(2, 4, 4, device="meta"))
    with pytest.raises(ValueError, match=f"^`{name}` got a tensor of dtype torch.float32 and layout torch.sparse_coo as scores; expected"):
        call(torch.zeros(2, 4, 4).to_sparse())
    with pytest.raises(ValueError, match=r"^`score` got z on the device meta"):
        Subset(2).score(torch.zeros(4, device="meta"), torch.zeros(4))


@cases
def test_another_default_device_changes_nothing(case: OracleCase) -> None:
    """The device meta, on which nothing can be read, stands for a GPU."""

    def results() -> Iterator[Tensor]:
        for operation in operations_of(case.oracle, [name for name in OPERATIONS if name != "kbest"]):
            leaf = scores.clone().requires_grad_(operation in DIFFERENTIABLE)
            result = OPERATIONS[operation](case.oracle, leaf, **({"generator": seeded()} if operation in RANDOM else {}))
            yield result.detach()
            if result.requires_grad:
                yield torch.autograd.grad(result.sum(), leaf)[0]
        listed = case.oracle.enumerate(case.event, device="cpu")
        yield from (listed, case.oracle.rank(listed), case.oracle.argmax(scores, as_indices=True))

    scores = make_scores(case, 1.0, rows=2)
    with torch.device("meta"):
        found = [*results()]
    for one, other in zip(found, results(), strict=True):
        assert one.device == other.device
        assert torch.equal(one, other)
