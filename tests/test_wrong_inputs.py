"""Wrong input to a function raises one sentence: the value, and the expected ones or the remedy."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from structgrad.estimators import (
    SUPERVISED_LOSSES,
    PerturbedFenchelYoung,
    StructuredLayer,
    crf_loss,
    csoftmax,
    csparsemax,
    entmax,
    fusedmax,
    make_estimator,
    make_noise,
    oscarmax,
    train_step,
)
from structgrad.estimators.noise import Gumbel
from structgrad.oracles import AVAILABLE_ORACLES, Alignment, Categorical, LinearChain, SpanningTree, Subset, make_oracle
from structgrad.suites.audit import audit
from structgrad.suites.measures.bias import measure
from structgrad.suites.measures.cost.wall_clock import measure_times
from structgrad.suites.measures.memory import training_memory
from structgrad.suites.problems import load, make_loss
from structgrad.suites.problems.sized import size_names
from structgrad.suites.truth import exact_truth
from tests.reports.calling import call, refused

NAN, INF = math.nan, math.inf
SCORES, ROWS = torch.tensor([0.3, -0.2, 0.5, 0.0]), torch.zeros(2, 4)
TWO = Subset(2)


def loss(z: Any) -> Any:
    return z @ SCORES.to(z)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def gradient(name: str, loss: Any = loss, oracle: Any = TWO, scores: Any = SCORES, generator: Any = None, **more: Any) -> Any:
    return make_estimator(name).gradient(loss, oracle, scores, generator=seeded() if generator is None else generator, **more)


def without(generator: Any, name: str) -> Any:
    return make_estimator(name).gradient(loss, TWO, SCORES, generator=generator)


PYTHON: dict[str, tuple[Callable[[], Any], str]] = {
    # names and options
    "a name that is none": (lambda: make_estimator("rlo"), "got the unknown estimator 'rlo'; did you mean rloo"),
    "a name like no other": (lambda: make_estimator("qqqq"), "expected one of exact, .* and 79 more, see `structgrad list`"),
    "an oracle as an estimator": (lambda: make_estimator("subset[k=2]"), "got the unknown estimator 'subset'"),
    "an estimator as an oracle": (lambda: make_oracle("rloo"), "got the unknown oracle 'rloo'; "),
    "brackets that do not close": (lambda: make_estimator("rloo["), "expected `name` or `name.option=value,...."),
    "a name that is no text": (lambda: make_estimator(None), "got a NoneType; expected a class of estimators"),
    "an option of nothing": (lambda: make_estimator("rloo[num_samples=]"), "expected `option=value`"),
    "no name": (lambda: make_estimator(""), "^got the name ''; expected `name` or `name.option=value,....`"),
    "a value without an option": (lambda: make_estimator("imle[2.5]"), "^got the option '2.5' in 'imle.2.5.'; expected `option=value`"),
    "an option of another estimator": (
        lambda: make_estimator("ste[temperature=2]"),
        "^estimator 'ste.temperature=2.': got 'temperature'; it takes no",
    ),
    "a misspelt option": (lambda: make_estimator("rloo[samples=3]"), "got the unknown option 'samples'; did you mean num_samples"),
    "an option of a noise": (lambda: make_estimator("imle[noise=gumbel/scale=-1]"), "`gumbel` got scale=-1; expected a finite number > 0"),
    "half an option of a noise": (lambda: make_estimator("imle[noise=gumbel/scale]"), "got the option 'scale' in .*; expected"),
    "an option twice": (lambda: make_estimator("rloo[num_samples=2,num_samples=3]"), "twice in .*; expected it once"),
    "a noise that is none": (lambda: make_noise("gumble"), "got the unknown noise 'gumble'; did you mean gumbel"),
    "a subset without a size": (lambda: make_oracle("subset"), "lacks an option; expected subset"),
    "a module that is none": (lambda: make_estimator("no_such:Thing"), "could not import it: No module named 'no_such'"),
    "an attribute that is none": (lambda: make_estimator("math:Thing"), "could not import it: math defines no 'Thing'"),
    "something else in a module": (lambda: make_estimator("math:pi"), "got .math:pi., a float; expected a class of estimators"),
    # arguments of an estimate
    "no generator": (lambda: without(None, "rloo"), "got None as generator; expected a torch.Generator"),
    "no generator, where nothing is drawn": (lambda: without(None, "structured_attention"), "got None as generator"),
    "a seed as generator": (lambda: without(0, "rloo"), "got 0 as generator; expected a torch.Generator"),
    "a generator of numpy": (lambda: without(np.random.default_rng(), "rloo"), "got a Generator as generator; expected a torch.Generator"),
    "an array as scores": (
        lambda: gradient("rloo", scores=SCORES.numpy()),
        "got a ndarray as scores; expected a dense floating-point torch.Tensor",
    ),
    "a list as scores": (lambda: gradient("rloo", scores=[0.1, 0.2]), "got a list as scores; expected a dense floating-point"),
    "integer scores": (
        lambda: gradient("rloo", scores=torch.arange(4)),
        "a tensor of dtype torch.int64 as scores; expected a dense floating-point",
    ),
    "an array as scores of a layer": (
        lambda: make_estimator("ste").structure(TWO, SCORES.numpy(), generator=seeded()),  # type: ignore[attr-defined]
        "got a ndarray as scores",
    ),
    "swapped loss and oracle": (
        lambda: gradient("rloo", TWO, loss),
        "got a Subset as loss; expected .*; the order is loss, oracle, scores",
    ),
    "swapped oracle and scores": (
        lambda: gradient("rloo", loss, SCORES, TWO),
        "a tensor .* as oracle; expected .*; the order is loss, oracle",
    ),
    "a name as oracle": (lambda: gradient("rloo", oracle="subset"), "oracle 'subset' lacks an option; expected subset.k="),
    "a class as oracle": (lambda: gradient("rloo", oracle=Subset), "as oracle; expected an oracle or its name, such as"),
    "a number as loss": (lambda: gradient("rloo", 1.0), "got 1.0 as loss; expected a function"),
    "losses as loss": (lambda: gradient("rloo", SCORES), "as loss; expected a function"),
    "a loss that gives a float": (lambda: gradient("rloo", lambda z: 1.0), "the loss gave 1.0; expected a tensor"),
    "a loss that gives an array": (lambda: gradient("rloo", lambda z: loss(z).numpy()), "the loss gave a ndarray; expected a tensor"),
    "a loss that reduces": (lambda: gradient("rloo", lambda z: loss(z).mean()), "expected one value per structure"),
    "a loss without gradient": (lambda: gradient("ste", lambda z: loss(z.detach())), "expected a differentiable loss, or choose"),
    "a pair that does not fit": (lambda: gradient("reinmax"), "needs .*, which the oracle subset does not offer; choose another pair"),
    "nan scores": (lambda: gradient("rloo", scores=SCORES * NAN), "got scores with NaN or \\+inf; expected finite scores, or -inf"),
    "infinite scores": (lambda: gradient("rloo", scores=SCORES + INF), "expected finite scores, or -inf for a forbidden part"),
    "too few parts": (lambda: gradient("rloo", scores=torch.zeros(1)), "expected n >= k, choose a smaller k"),
    "more samples than memory holds": (
        lambda: StructuredLayer(TWO, "rloo[num_samples=100000000000000]", event_shape=(4,)),
        "rloo got num_samples=100000000000000, structures of 4 parts that take .* GiB of memory, .*: choose a smaller num_samples",
    ),
    "a longer list than memory holds": (
        lambda: gradient("top_k_sparsemax[k=100000000000000]"),
        "top_k_sparsemax got k=100000000000000, structures of 4 parts that take .*: choose a smaller k",
    ),
    # operations
    "argmax of an array": (lambda: TWO.argmax(SCORES.numpy()), "got scores of ndarray; expected .*, as torch.as_tensor"),  # type: ignore[arg-type]
    "argmax of integers": (lambda: TWO.argmax(torch.arange(4)), "got scores of dtype torch.int64; expected .*, as scores.float"),
    "argmax of nothing": (lambda: TWO.argmax(None), "got scores of NoneType; expected"),  # type: ignore[arg-type]
    "argmax of a number": (lambda: TWO.argmax(torch.tensor(1.0)), "got scores of shape \\(\\); expected"),
    "argmax of another event": (lambda: SpanningTree().argmax(torch.zeros(3, 4)), "got event shape \\(3, 4\\); expected"),
    "no parts": (lambda: Categorical().argmax(torch.zeros(0)), "got event shape \\(0,\\); expected at least one part"),
    "samples without generator": (lambda: TWO.sample(SCORES, generator=None), "`sample` got generator=None; expected a torch.Generator"),  # type: ignore[arg-type]
    "samples by seed": (lambda: TWO.sample(SCORES, generator=3), "`sample` got generator=3; expected a torch.Generator"),  # type: ignore[arg-type]
    "no samples": (lambda: TWO.sample(SCORES, 0, generator=seeded()), "got num_samples=0; expected at least 1"),
    "half a sample of an oracle": (lambda: TWO.sample(SCORES, 2.5, generator=seeded()), "got num_samples=2.5; expected at least 1"),  # type: ignore[arg-type]
    "relaxed samples without generator": (
        lambda: LinearChain().relaxed_sample(torch.zeros(2, 3, 3), generator=None),  # type: ignore[arg-type]
        "`relaxed_sample` got generator=None",
    ),
    "a temperature of 0": (
        lambda: LinearChain().relaxed_sample(torch.zeros(2, 3, 3), 0.0, generator=seeded()),
        "expected a positive number",
    ),
    "no best": (lambda: TWO.kbest(SCORES, 0), "`kbest` got k=0; expected 1 <= k <= 6"),
    "half a best": (lambda: TWO.kbest(SCORES, 1.5), "`kbest` got k=1.5; expected 1 <= k <= 6"),  # type: ignore[arg-type]
    "more than there are": (lambda: TWO.kbest(SCORES, 7), "`kbest` got k=7; expected 1 <= k <= 6"),
    "log-probability of an array": (lambda: TWO.log_prob(np.ones(4), SCORES), "`log_prob` got a structure of type ndarray; expected"),  # type: ignore[arg-type]
    "score of another shape": (
        lambda: TWO.score(torch.ones(3), SCORES),
        "got a structure of shape \\(3,\\) for scores of shape \\(4,\\); expected",
    ),
    "rank of an array": (lambda: TWO.rank(np.ones(4)), "`rank` got structures of ndarray; expected"),  # type: ignore[arg-type]
    "an event shape that is a number": (lambda: TWO.enumerate(4), "`enumerate` got event_shape=4; expected a tuple"),  # type: ignore[arg-type]
    "a range that is none": (lambda: TWO.enumerate((4,), 5, 9), "got start=5, stop=9; expected 0 <= start <= stop <= 6"),
    "too large to list": (lambda: Subset(30).enumerate((60,)), "`enumerate` got .* GiB; take ranges, by start= and stop="),
    "another smoothing": (lambda: LinearChain().relax(torch.zeros(2, 3, 3), "l3"), 'got omega=.l3.; expected "entropy" or "l2"'),  # type: ignore[arg-type]
    "lengths of another shape": (
        lambda: Categorical().argmax(ROWS, lengths=torch.tensor([1, 2, 3])),
        "expected an integer tensor of shape",
    ),
    "lengths as a list": (lambda: Categorical().argmax(ROWS, lengths=[1, 2]), "got lengths: list; expected an integer tensor"),  # type: ignore[arg-type]
    "lengths that are too long": (
        lambda: Categorical().argmax(ROWS, lengths=torch.tensor([1, 9])),
        "^`lengths` must be between 0 and 4 for scores of shape \\(2, 4\\), got 9$",
    ),
    "lengths below 0": (lambda: Categorical().argmax(ROWS, lengths=torch.tensor([-1, 2])), "`lengths` must be between 0 and 4 .*, got -1$"),
    "lengths that are no integers": (
        lambda: Categorical().argmax(ROWS, lengths=torch.ones(2)),
        "torch.float32 of shape .*; expected an integer",
    ),
    "a mask of numbers": (lambda: SpanningTree().masked(ARCS, torch.ones(2, 3)), "^`mask` must be a boolean .*; got torch.float32$"),
    "a mask of other integers": (lambda: Subset(2).masked(ROWS, torch.tensor([[3]])), "^`mask` must be True or False, .* lengths=$"),
    "a mask of parts without a batch": (
        lambda: SpanningTree().masked(ARCS, torch.ones(4, 4) > 0),
        r"^`mask` must be \(2, 3\) or \(2, 4\) for items, or .* \(2, 4, 4\) for parts; got \(4, 4\). One of 2 .* mask\[None\]$",
    ),
    "one mask for two lengths": (
        lambda: Alignment().masked(torch.zeros(2, 3, 4), torch.ones(2, 3) > 0),
        r"^`mask` must be a pair of \(2, 3\) and \(2, 4\) for items, or broadcast to .*; got \(2, 3\)",
    ),
    "a mask and lengths": (lambda: SpanningTree().masked(ARCS, torch.ones(2, 3) > 0, lengths=torch.tensor([1, 2])), "got lengths too"),
    "padding on the left": (
        lambda: SpanningTree().masked(ARCS, torch.tensor([[0, 1, 1], [1, 1, 1]])),
        r"^`mask` of items must be True up to the length .*; got True after False: pad on the right, .* broadcasts to \(2, 4, 4\)$",
    ),
    "sizes by another name": (lambda: Subset.event_shape(size=3), "got sizes size; expected length"),
    "a size of 0": (lambda: Subset.event_shape(length=0), "got length=0; expected an integer >= 1"),
    "a size of text": (lambda: LinearChain.event_shape(length=3, tags="x"), "got tags='x'; expected an integer >= 1"),  # type: ignore[arg-type]
    "costs at no temperature": (lambda: Alignment.from_costs(torch.zeros(2, 2), 0.0), "got gamma=0.0; expected a number above 0"),
    "entmax below 1": (lambda: entmax(SCORES, 0.9), "`entmax` got alpha=0.9; expected finite numbers of at least 1"),
    "entmax of nan": (lambda: entmax(SCORES, NAN), "`entmax` got alpha=nan; expected finite numbers of at least 1"),
    "entmax, one row below 1": (lambda: entmax(ROWS, torch.tensor([1.5, 0.5])), "`entmax` got alpha=tensor.*; expected"),
    "entmax of nan scores": (lambda: entmax(SCORES * NAN), "`entmax` got scores with NaN or .inf; expected finite scores, or -inf"),
    "entmax of integers": (lambda: entmax(torch.arange(4)), "`entmax` got scores of dtype torch.int64, .*; expected a floating-point"),
    "entmax of a list": (lambda: entmax([0.0]), "`entmax` got scores of list; expected a floating-point torch.Tensor"),  # type: ignore[arg-type]
    "csoftmax of a number": (lambda: csoftmax(SCORES[0], 1.0), r"`csoftmax` got scores of dtype torch.float32, shape \(\); expected"),
    "fusedmax below 0": (lambda: fusedmax(SCORES, -1.0), "`fusedmax` got strength=-1.0; expected a finite number that is not negative"),
    "oscarmax without end": (lambda: oscarmax(SCORES, INF), "`oscarmax` got strength=inf; expected a finite number that is not negative"),
    "bounds that leave nothing": (lambda: csparsemax(SCORES, 0.2), "upper bounds that sum to 0.8 in some row; expected 1 or more"),
    "bounds of forbidden parts": (
        lambda: csoftmax(torch.tensor([0.0, -INF]), 0.6),
        "`csoftmax` got upper bounds that sum to 0.6 in some row; expected 1 or more",
    ),
    "a bound below 0": (lambda: csoftmax(ROWS, SCORES), "`csoftmax` got upper bounds of -0.2.* and more; expected numbers that"),
    "noise of an array": (lambda: Gumbel().perturb(TWO, SCORES.numpy(), generator=seeded()), "got a ndarray as scores"),  # type: ignore[arg-type]
    "a supervised loss of an array": (lambda: crf_loss(TWO, SCORES.numpy(), SCORES), "got scores of ndarray; expected"),  # type: ignore[arg-type]
    "a perturbed loss without generator": (
        lambda: PerturbedFenchelYoung()(TWO, SCORES, TWO.argmax(SCORES), generator=None),  # type: ignore[arg-type]
        "got None as generator",
    ),
    # measuring
    "a misspelt name for an estimator": (lambda: measure("rlo", TWO, loss, SCORES), "got the unknown estimator 'rlo'; did you mean rloo"),
    "a class for an estimator": (lambda: measure(Gumbel, TWO, loss, SCORES), "got 'Gumbel', a Gumbel; expected a class of estimators"),  # type: ignore[arg-type]
    "another order": (lambda: measure(make_estimator("rloo"), loss, TWO, SCORES), "; the order is loss, oracle, scores|as loss; expected"),
    "measuring an array": (
        lambda: measure(make_estimator("rloo"), TWO, loss, SCORES.numpy()),
        "`measure` got a ndarray as scores; expected",
    ),  # type: ignore[arg-type]
    "measuring a batch": (
        lambda: measure(make_estimator("rloo"), TWO, loss, ROWS),
        "got scores of shape \\(2, 4\\); expected one instance",
    ),
    "measuring what is forbidden": (
        lambda: measure(make_estimator("rloo"), TWO, loss, SCORES - INF),
        "expected at least one feasible structure",
    ),
    "measuring a random loss": (
        lambda: measure(make_estimator("rloo"), TWO, lambda z: torch.rand(z.shape[:-1]), SCORES),
        "must not be random",
    ),
    "measuring nan": (lambda: measure(make_estimator("rloo"), TWO, lambda z: loss(z) * NAN, SCORES), "the loss gave nan; expected finite"),
    "timing a number": (lambda: measure_times({"a": 1}, TWO, loss, ROWS), "`measure_times` got 1 as estimator; expected .* or its name"),  # type: ignore[dict-item]
    "memory of a number": (lambda: training_memory(1, TWO, loss, ROWS), "`training_memory` got 1 as estimator; expected"),  # type: ignore[arg-type]
    "a truth too large": (
        lambda: exact_truth(loss_of_60, Subset(30), torch.zeros(60)),
        "; expected at most .*, because at .* take .* years",
    ),
    "auditing a number": (lambda: audit(3), "got a int; expected a class of estimators, a function of"),
    "auditing at no level": (lambda: audit(make_estimator("rloo"), alpha=0.0), "`audit` got alpha=0.0; expected a number between 0 and 1"),
    "auditing a claim twice": (
        lambda: audit(make_estimator("rloo"), unbiased=False),
        "which declares it itself; expected them for a function or layer",
    ),
    "a problem that is none": (lambda: load("chains", "init", instances=1, data=None), "got the unknown problem 'chains'; did you mean"),
    "a stage that is none": (
        lambda: load("chain_regimes", "late", instances=1, data=None),
        "got the unknown stage 'late'; expected one of",
    ),
    "no instances": (
        lambda: load("chain_regimes", "init", instances=0, data=None),
        "got instances=0 of chain_regimes; expected at least 1",
    ),
    "a loss that is none": (lambda: make_loss("quadrat", SCORES, TWO, seed=0), "got the unknown loss 'quadrat'; did you mean quadratic"),
}


def loss_of_60(z: torch.Tensor) -> torch.Tensor:
    return z.sum(-1)


TREES, ARCS, GOLD = SpanningTree(), torch.zeros(2, 4, 4), SpanningTree.structure(torch.zeros(2, 3, dtype=torch.int64))

OF_SCORES: dict[str, Callable[..., Any]] = {
    **{name: getattr(TREES, name) for name in ("argmax", "marginals", "log_partition", "entropy", "feasible", "project")},
    "sample": lambda scores, **more: TREES.sample(scores, generator=seeded(), **more),
    "kbest": lambda scores, **more: TREES.kbest(scores, 2, **more),
    "log_prob": lambda scores, **more: TREES.log_prob(GOLD, scores, **more),
    "kl": lambda scores, **more: TREES.kl(scores, ARCS, **more),
    **{name: functools.partial(loss, TREES, target=GOLD) for name, loss in SUPERVISED_LOSSES.items() if "perturbed" not in name},
    "PerturbedFenchelYoung": lambda scores, **more: PerturbedFenchelYoung()(TREES, scores, GOLD, generator=seeded(), **more),
    "StructuredLayer": lambda scores, **more: StructuredLayer(TREES, "ste").eval()(scores, **more),
    "train_step": lambda scores, **more: train_step(
        StructuredLayer(TREES, "rloo"), torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1), scores, lambda z: z.sum((-2, -1)), **more
    ),
    **{
        name: lambda scores, name=name, **more: StructuredLayer(TREES, name).surrogate(lambda z: z.sum((-2, -1)), scores, **more)
        for name in ("rloo", "imle", "simple", "sparsemap", "exact", "sum_and_sample", "reinforce_greedy", "perturb_and_map")
    },
}
"""Public calls that take scores of trees, by the name that their errors use."""

BAD_SCORES = {
    "nan": (ARCS * NAN, "got scores with NaN or +inf; expected finite scores, or -inf for a forbidden part"),
    "event": (torch.zeros(2, 4, 3), "got event shape (4, 3); expected (n + 1, n + 1) for n >= 1 words"),
    "integers": (ARCS.long(), "scores"),
}


@pytest.mark.parametrize("kind", [*BAD_SCORES, "lengths"])
def test_an_error_names_what_the_user_called(kind: str) -> None:
    for called, call_with in OF_SCORES.items():
        with pytest.raises(ValueError, match=r"expected|must be") as caught:
            call_with(ARCS, lengths=torch.tensor([2, 4])) if kind == "lengths" else call_with(BAD_SCORES[kind][0])
        said = str(caught.value)
        if kind == "lengths":
            assert said == (
                "`lengths` must be between 0 and 3 for scores of shape (2, 4, 4), got 4. "
                "Dependency-tree scores have an extra row and column for the root: [*batch, n + 1, n + 1]"
            ), called
        else:
            names = {called, "rloo"} if called == "train_step" else {called}
            assert said.partition(" got ")[0].strip("`") in names, said
            assert BAD_SCORES[kind][1] in said


def test_an_error_in_your_own_loss_keeps_its_name() -> None:
    def wrong(z: Any) -> Any:
        return TREES.marginals(z * NAN).sum((-2, -1))

    for make in (lambda: gradient("rloo", wrong, TREES, ARCS), lambda: StructuredLayer(TREES, "rloo").surrogate(wrong, ARCS)):
        with pytest.raises(ValueError, match=r"^`marginals` got scores with NaN"):
            make()


@pytest.mark.parametrize("case", list(PYTHON))
def test_python(case: str) -> None:
    make, message = PYTHON[case]
    with pytest.raises(ValueError, match=message) as caught:
        make()
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 400, said
    assert re.search("expected|did you mean|choose|could not import|must (not )?be|declares it itself|takes? (ranges|no)", said), said


# The command line: `tests/goldens/test_verbs.py` has its messages.


@pytest.mark.parametrize("name", list(AVAILABLE_ORACLES))
def test_sizes_that_no_memory_holds(name: str) -> None:
    options = {"subset": "k=2,", "at_most": "k=2,"}.get(name, "")
    sizes = ",".join(f"{size}={10**11}" for size in size_names(AVAILABLE_ORACLES[name]))
    said = refused("run", "bias", "--dry-run", "-p", f"{name}[{options}{sizes}]", "-e", "rloo")
    assert re.search("expected at most 250,000, take smaller sizes|expected an integer", said), said


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_gold_of_integers_without_a_sign(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "gold.npz"
    np.savez(path, scores=np.zeros((2, 5)), gold=np.eye(5, dtype=dtype)[:2])
    words = ("run", "bias", "--dry-run", "--oracle", "categorical", "--file", path, "--field", "gold=gold", "-e", "rloo")
    assert call(*words).exit_code == 0
