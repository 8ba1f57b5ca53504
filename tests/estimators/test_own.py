import functools
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from structgrad.estimators import make_estimator, own_estimator
from structgrad.estimators.own import FunctionEstimator, LayerEstimator
from structgrad.oracles import Categorical, plugins
from structgrad.suites import Plan, measure
from structgrad.suites.audit import audit
from structgrad.suites.running.planning.grid import grid
from structgrad.suites.tasks import make_task
from structgrad.suites.tasks.training import train
from tests.helpers import seeded
from tests.reports.calling import call, refused

SCORES = torch.tensor([[0.5, 0.0, -0.5], [0.0, 1.0, 0.2]], dtype=torch.float64)
FILE = '''
import torch
from torch import nn

def rloo(loss, oracle, scores, generator, num_samples: int = 3):
    """My leave-one-out."""
    z = oracle.sample(scores, num_samples, generator=generator)
    losses = loss(z).detach()
    baseline = (losses.sum(0) - losses) / (num_samples - 1)
    return ((losses - baseline) * oracle.log_prob(z, scores)).mean(0)

class Gate(nn.Module):
    def __init__(self, tau: float = 1.0):
        super().__init__()
        self.tau = tau

    def forward(self, scores):
        return nn.functional.gumbel_softmax(scores, self.tau, hard=True)
'''


def loss(z: Tensor) -> Tensor:
    return z.cumsum(-1).square().sum(-1)


def surrogate(loss, oracle, scores, generator):
    z = oracle.sample(scores, 4, generator=generator)
    losses = loss(z)
    term = ((losses - (losses.sum(0) - losses) / 3).detach() * oracle.log_prob(z, scores)).mean(0)
    return losses.mean(0) + term - term.detach()


def estimates(loss, oracle, scores, generator):
    scores.requires_grad_()
    surrogate(loss, oracle, scores, generator).sum().backward()
    return scores.grad


def best(scores: Tensor) -> Tensor:
    return torch.zeros_like(scores).scatter(-1, scores.argmax(-1, keepdim=True), 1.0)


def straight_through(scores: Tensor) -> Tensor:
    soft = scores.softmax(-1)
    return best(scores) + soft - soft.detach()


class Gate(nn.Module):
    def __init__(self, tau: float = 1.0) -> None:
        super().__init__()
        self.tau = tau

    def forward(self, scores: Tensor) -> Tensor:
        return nn.functional.gumbel_softmax(scores, self.tau, hard=True)


class Blackbox(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores):
        z = best(scores)
        ctx.save_for_backward(scores, z)
        return z

    @staticmethod
    def backward(ctx, grad):
        scores, z = ctx.saved_tensors
        return (z - best(scores - 2 * grad)) / 2


def decorated(function):
    @functools.wraps(function)
    def solver(*args, **named):
        return function(*args, **named)

    return solver


def gradient(given) -> Tensor:
    return make_estimator(given).gradient(loss, Categorical(), SCORES, generator=seeded())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(FILE)
    yield tmp_path
    plugins.use(())


def test_functions_of_estimates_and_of_surrogates_give_the_same() -> None:
    assert torch.equal(gradient(surrogate), gradient(estimates))
    torch.testing.assert_close(gradient(surrogate), gradient("rloo[num_samples=4]"))


@pytest.mark.parametrize(
    ("layer", "like"), [(straight_through, "ste_identity"), (decorated(straight_through), None), (Blackbox, None), (nn.Softmax(-1), None)]
)
def test_layers_are_recognised_and_differentiated(layer, like: str | None) -> None:
    function = layer.apply if layer is Blackbox else layer
    leaf = SCORES.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(loss(function(leaf)).sum(), leaf)
    assert isinstance(make_estimator(layer), LayerEstimator)
    torch.testing.assert_close(gradient(layer), wanted)


def test_noise_of_a_layer_follows_from_the_generator_and_leaves_that_of_torch_alone() -> None:
    before = torch.get_rng_state()
    assert torch.equal(gradient(Gate()), gradient(Gate()))
    assert torch.equal(before, torch.get_rng_state())
    other = make_estimator(Gate()).gradient(loss, Categorical(), SCORES, generator=seeded(1))
    assert not torch.equal(gradient(Gate()), other)


def test_a_class_of_modules_takes_options() -> None:
    assert own_estimator(Gate, {"tau": "0.5"}).function.tau == 0.5
    assert own_estimator(Gate, name="my gate").name == "my gate"


@pytest.mark.parametrize("given", [surrogate, estimates])
def test_parameters_of_the_loss_learn_from_surrogates_and_from_estimates(given) -> None:
    weight, own = torch.ones((), dtype=torch.float64, requires_grad=True), make_estimator(given)
    total = own.surrogate(lambda z: weight * loss(z), Categorical(), SCORES, generator=seeded()).sum()
    wanted = loss(Categorical().sample(SCORES, 4, generator=seeded())).mean(0).sum()
    torch.testing.assert_close(torch.autograd.grad(total, weight), (wanted,))
    with torch.no_grad():
        assert torch.equal(make_estimator(surrogate).surrogate(loss, Categorical(), SCORES, generator=seeded()).sum(), wanted)


def test_they_are_measured_as_they_are() -> None:
    assert measure(surrogate, "categorical", loss, SCORES[0]).verdict == "unbiased-exact"
    found = measure(straight_through, "categorical", loss, SCORES[0])
    assert (found.verdict, repr(found).partition(":")[0]) == ("biased", "<Measurement of straight_through on categorical")
    assert audit(straight_through, structures=("categorical[n=4]",), quick=True).comparisons[0].gain[0] is not None
    relaxed = make_estimator(lambda loss, oracle, scores, generator: loss(oracle.marginals(scores)))
    assert [make_estimator(one).needs_values_only(Categorical(), (3,)) for one in (surrogate, relaxed)] == [True, False]
    declared = own_estimator(straight_through, objective="relaxed", scale=2.0, unbiased=True)
    assert (declared.objective, declared.scale, declared.unbiased) == ("relaxed", 2.0, True)


def test_the_textbook_surrogate_is_misdeclared_with_the_line_that_mends_it() -> None:
    def textbook(loss, oracle, scores, generator):
        z = oracle.sample(scores, 4, generator=generator)
        losses = loss(z)
        return ((losses - (losses.sum(0) - losses) / 3).detach() * oracle.log_prob(z, scores)).mean(0)

    with pytest.raises(ValueError, match="`textbook` gives the decoder no gradient; expected a surrogate that does not detach"):
        train(make_task("clusters"), textbook, rate=0.01, seed=0, steps=1)
    found = audit(textbook, structures=("categorical[n=4]",), quick=True)
    assert found.verdict == "misdeclared"
    assert found.remedies == (
        "return `losses.mean(0) + term - term.detach()`, where `term` is your surrogate and `losses` are not detached",
    )
    assert audit(surrogate, structures=("categorical[n=4]",), quick=True).verdict == "right"


def test_the_command_line_measures_and_describes_them(folder: Path) -> None:
    plan = Plan(suites=("bias",), problems=("categorical_regimes",), stages=("init",), estimators=("./mine.py:rloo", "./mine.py:Gate"))
    before = [cell.identity for cell in grid(plan).cells]
    assert len(before) == 2
    words = ("run", "bias", "--builtin", "-j", "0", "-p", "categorical_regimes", "--stage", "init", "--loss", "own", "--instances", "1")
    done = call(*words, "-e", "./mine.py:rloo[num_samples=2]", "-e", "./mine.py:Gate[tau=0.5]", "--out", "out", "--no-timing")
    assert done.exit_code == 0, done.output
    assert "./mine.py:Gate[tau=0.5]" in done.stdout
    shown = call("describe", "./mine.py:rloo").stdout
    assert "unbiased: yes" in shown
    assert "My leave-one-out." in shown
    assert "options: num_samples = 3 (" in shown
    assert "options: tau = 1.0 (a finite number)" in call("describe", "./mine.py:Gate").stdout
    Path("mine.py").write_text(FILE.replace("(num_samples - 1)", "num_samples"))
    plugins.use(())
    assert not set(before) & {cell.identity for cell in grid(plan).cells}


def test_a_file_without_a_name_lists_what_it_offers(folder: Path) -> None:
    for verb in ("audit", "describe"):
        assert "expected a class or function of it, one of ./mine.py:rloo, ./mine.py:Gate" in refused(verb, "./mine.py")
    assert "such as ./mine.py:MyEstimator" in refused("audit", "./absent.py")


def test_declarations_are_for_functions_and_layers() -> None:
    with pytest.raises(ValueError, match="got unbiased for rloo, which declares it itself"):
        make_estimator("rloo", unbiased=False)
    assert isinstance(make_estimator(estimates, unbiased=False), FunctionEstimator)
