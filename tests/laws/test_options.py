"""Every option of every estimator, oracle and noise is read and checked by what it declares: type, range, and the sentence that says so."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from structgrad.estimators import ESTIMATORS, NOISES, Gumbel, make_estimator, make_noise
from structgrad.oracles import ORACLES, make_oracle
from structgrad.oracles.options import declared
from structgrad.reports.cli import app

COUNT = "an integer >= 1"
FLAG = "true or false"
POSITIVE = "a finite number > 0"
AT_LEAST_0 = "a finite number >= 0"
AT_LEAST_1 = "a finite number >= 1"
DECAY = "a finite number >= 0 and < 1"
BOUND = "a finite number > 0 and <= 1"
CLIP = "a finite number > 0 and < 1"
FINITE = "a finite number"
NOISE = "a noise: gumbel, normal or sum_of_gamma"
FUNCTION = "a torch.nn.Module or a function, which Python alone can give, or None"
PEERS = "an integer >= 2, the others are the baseline"
VARIATES = "'none' or 'argmax' or 'leave_one_out'"
NUMBERS = "a tuple, each a finite number"
SMOOTH = "a noise of known density: gumbel or normal"

EXPECTED: dict[str, dict[str, str]] = {
    "exact": {"chunk": COUNT, "limit": COUNT},
    "reinforce": {"num_samples": COUNT},
    "reinforce_constant": {"value": FINITE, "num_samples": COUNT},
    "reinforce_running_mean": {"mean": FINITE, "decay": DECAY, "num_samples": COUNT},
    "reinforce_greedy": {"num_samples": COUNT},
    "reinforce_sampled": {"num_samples": COUNT},
    "reinforce_optimal": {"pilots": COUNT, "per_part": FLAG, "num_samples": COUNT},
    "reinforce_learned": {"module": FUNCTION, "num_samples": COUNT, "regression_weight": AT_LEAST_0},
    "reinforce_conditional_mean": {"num_samples": COUNT, "chunk": COUNT, "limit": COUNT},
    "reinforce_normalised": {"mean": FINITE, "variance": AT_LEAST_0, "decay": DECAY, "num_samples": COUNT},
    "reinforce_ppo": {"inner_steps": COUNT, "step_size": POSITIVE, "clip": CLIP, "value": FINITE, "num_samples": COUNT},
    "rloo": {"num_samples": PEERS},
    "vargrad": {"num_samples": "an integer >= 2, a variance is taken over them"},
    "muprop": {"num_samples": COUNT},
    "double_cv": {"alpha": FINITE, "num_samples": PEERS},
    "sum_and_sample": {"k": COUNT, "centred": FLAG, "limit": COUNT},
    "unordered_set": {"num_samples": COUNT, "baseline": FLAG, "limit": COUNT},
    "importance_weighted_set": {"num_samples": COUNT, "baseline": FLAG, "normalised": FLAG, "limit": COUNT},
    "arm": {"num_pairs": COUNT},
    "disarm": {"num_pairs": COUNT},
    "disarm_sb": {"num_pairs": COUNT},
    "disarm_tree": {"num_pairs": COUNT},
    "carms": {"num_samples": PEERS},
    "antithetic_pairs": {"num_pairs": COUNT},
    "local_expectation": {"num_samples": COUNT},
    "rodeo": {"alpha": FINITE, "beta": FINITE, "num_samples": PEERS},
    "rebar": {"eta": FINITE, "temperature": POSITIVE},
    "relax": {"eta": FINITE, "temperature": POSITIVE, "control": "an object of Module, or None", "with_loss": FLAG},
    "step_reinforce": {"value": FINITE, "num_samples": COUNT},
    "step_greedy": {"num_samples": COUNT},
    "step_sampled": {"num_samples": COUNT},
    "step_conditional_mean": {"num_samples": COUNT, "limit": COUNT},
    "step_optimal": {"num_samples": COUNT, "limit": COUNT},
    "step_learned": {"module": FUNCTION, "values": NUMBERS, "num_samples": COUNT, "regression_weight": AT_LEAST_0},
    "step_leave_one_out": {"num_samples": PEERS},
    "step_local_expectation": {"num_samples": COUNT},
    "step_ppo": {"inner_steps": COUNT, "step_size": POSITIVE, "clip": CLIP, "value": FINITE, "num_samples": COUNT},
    "ste_marginals": {"temperature": POSITIVE},
    "simple": {"temperature": POSITIVE},
    "step_ste": {"temperature": POSITIVE},
    "identity": {"centre": FLAG, "normalise": FLAG},
    "identity_perturbed": {"noise": NOISE, "centre": FLAG, "normalise": FLAG},
    "gst": {"temperature": POSITIVE, "gap": "a finite number >= 0, or 'p'"},
    "reinmax": {"temperature": AT_LEAST_1},
    "reinmax_rao": {"temperature": POSITIVE, "num_conditionals": COUNT},
    "path_quadrature": {"rule": "'midpoint' or 'gauss' or 'simpson'"},
    "reinmax_cv": {"temperature": POSITIVE, "eta": FINITE, "num_conditionals": COUNT},
    "gumbel_softmax": {"temperature": POSITIVE},
    "st_gumbel": {"temperature": POSITIVE},
    "decoupled_st_gumbel": {"forward_temperature": POSITIVE, "backward_temperature": POSITIVE},
    "gumbel_rao": {"temperature": POSITIVE, "num_conditionals": COUNT},
    "step_st_gumbel": {"temperature": POSITIVE},
    "relaxed_top_k": {"temperature": POSITIVE},
    "relaxed_top_k_st": {"temperature": POSITIVE},
    "gumbel_crf": {"temperature": POSITIVE},
    "gumbel_crf_st": {"temperature": POSITIVE},
    "perturb_and_map": {"noise": NOISE},
    "perturb_and_parse": {"noise": NOISE, "temperature": POSITIVE},
    "stochastic_softmax": {"temperature": POSITIVE, "noise": NOISE},
    "stochastic_sparsemap": {"temperature": POSITIVE, "noise": NOISE},
    "perturbed_optimizer": {"sigma": POSITIVE, "num_samples": COUNT, "noise": SMOOTH, "control_variate": VARIATES},
    "perturbed_multiplicative": {"sigma": POSITIVE, "num_samples": COUNT, "control_variate": VARIATES},
    "spigot": {"step_size": POSITIVE, "max_norm": "a number > 0 or inf"},
    "spigot_steps": {"step_size": POSITIVE, "inner_steps": COUNT},
    "spigot_ce": {"step_size": POSITIVE, "inner_steps": COUNT},
    "spigot_eg": {"step_size": POSITIVE, "inner_steps": COUNT},
    "blackbox": {"lambda": POSITIVE},
    "imle": {"lambda": POSITIVE, "noise": NOISE, "num_samples": COUNT, "divide_by_lambda": FLAG},
    "aimle": {
        **{"beta": AT_LEAST_0, "nonzeros": AT_LEAST_0, "target": POSITIVE, "step_size": POSITIVE, "decay": DECAY},
        **{"symmetric": FLAG, "divide_by_lambda": FLAG, "noise": NOISE, "num_samples": COUNT},
    },
    "differentiable_dp": {"omega": "'l2' or 'entropy'"},
    "entmax": {"alpha": AT_LEAST_1},
    "fusedmax": {"strength": POSITIVE},
    "oscarmax": {"strength": POSITIVE, "magnitudes": FLAG},
    "csparsemax": {"upper": BOUND},
    "csoftmax": {"upper": BOUND},
    "sparsemax_marginalisation": {"limit": COUNT, "chunk": COUNT},
    "top_k_sparsemax": {"k": COUNT},
    "gumbel": {"scale": POSITIVE},
    "normal": {"scale": POSITIVE},
    "sum_of_gamma": {"k": POSITIVE, "scale": POSITIVE, "terms": "an integer >= 1 and <= 200"},
    "subset": {"k": COUNT},
    "projective_tree": {"single_root": FLAG},
    "spanning_tree": {"single_root": FLAG},
    "shift_reduce": {"normalization": "'global' or 'local'"},
}
"""Written out once more, so that a range does not change unseen."""

ENTRIES: dict[str, Any] = {**ESTIMATORS, **NOISES, **ORACLES}
NAN, INF = math.nan, math.inf

Cases = tuple[dict[str, Any], tuple[str, ...], tuple[Any, ...]]
CASES: dict[str, Cases] = {
    # text that is right, with what it means; text that is wrong; values that are wrong
    COUNT: ({"3": 3, " 4 ": 4}, ("0", "-1", "2.5", "3.0", "1e3", "abc", "nan", "inf", "true", "None"), (0, -2, 2.0, True, "3", None, NAN)),
    PEERS: ({"2": 2, "5": 5}, ("1", "0", "2.5", "abc", "false"), (1, 0, 2.0, True, "2", None)),
    FLAG: (
        {"true": True, "false": False, "True": True, "False": False, "FALSE": False},
        ("no", "yes", "0", "1", "off", "None", "'false'"),
        (0, 1, "false", "true", None, 0.0, torch.tensor(True)),
    ),
    POSITIVE: (
        {"2": 2.0, "0.5": 0.5, "1e-3": 1e-3},
        ("0", "-1", "nan", "inf", "abc", "true", "1x"),
        (0, 0.0, -1.0, NAN, INF, True, "1.0", None),
    ),
    AT_LEAST_0: ({"0": 0.0, "2.5": 2.5}, ("-0.1", "nan", "inf", "abc", "true"), (-0.1, NAN, INF, True, "1.0", None)),
    AT_LEAST_1: ({"1": 1.0, "2.5": 2.5}, ("0.9", "nan", "inf", "abc", "true"), (0.9, NAN, INF, True, "1.0", None)),
    DECAY: ({"0": 0.0, "0.99": 0.99}, ("1", "-0.1", "nan", "inf", "abc", "true"), (1.0, -0.1, NAN, True, "0.5", None)),
    BOUND: ({"1": 1.0, "0.2": 0.2}, ("0", "1.5", "nan", "inf", "abc", "true"), (0.0, 1.5, NAN, True, "0.5", None)),
    CLIP: ({"0.2": 0.2}, ("0", "1", "nan", "abc", "true"), (0.0, 1.0, NAN, True, "0.5", None)),
    FINITE: ({"-3": -3.0, "0": 0.0, "1e3": 1e3}, ("nan", "inf", "-inf", "abc", "true"), (NAN, INF, -INF, True, "1.0", None)),
    NOISE: (
        {"gumbel": Gumbel(), "normal/scale=2": NOISES["normal"](2.0), "sum_of_gamma/k=5": NOISES["sum_of_gamma"](5.0)},
        (),
        ("gumbel", 1.0, None, Gumbel),
    ),
    FUNCTION: ({"none": None, "None": None}, ("abc", "3"), (3, "abc", torch.zeros(2))),
    VARIATES: ({"none": "none", "argmax": "argmax", "'argmax'": "argmax"}, ("mean", "None", "3"), ("mean", None, 3)),
    "an integer >= 2, a variance is taken over them": ({"3": 3}, ("1", "abc"), (1, 2.0)),
    "an object of Module, or None": ({"none": None}, ("abc", "3"), (3, "abc", lambda z: z)),
    NUMBERS: ({"(1,2.5)": (1.0, 2.5), "3": (3.0,)}, ("abc", "(1,nan)", "(1,x)"), (1.0, "abc", (1.0, NAN), None)),
    "a finite number >= 0, or 'p'": ({"p": "p", "2": 2.0, "'p'": "p"}, ("q", "-1", "nan", "true"), ("q", -1.0, NAN, None, True)),
    SMOOTH: (
        {"gumbel": Gumbel()},
        ("sum_of_gamma", "sum_of_gamma/k=2"),
        (NOISES["sum_of_gamma"](), "gumbel", None),
    ),
    "a number > 0 or inf": ({"inf": INF, "2": 2.0}, ("0", "-1", "nan", "-inf", "abc"), (0.0, NAN, -INF, None, True, "1")),
    "'midpoint' or 'gauss' or 'simpson'": ({"gauss": "gauss", "simpson": "simpson"}, ("euler", "Gauss", "2"), ("euler", None, 2)),
    "'l2' or 'entropy'": ({"l2": "l2", "entropy": "entropy"}, ("max", "L2", "none"), ("max", None, 2)),
    "an integer >= 1 and <= 200": ({"7": 7, "200": 200}, ("0", "201", "2.5"), (0, 201, 2.5, True)),
    "'global' or 'local'": ({"global": "global", "local": "local"}, ("none", "Global", "true"), ("none", None, True)),
}


def test_the_table_is_complete() -> None:
    found = {name: {key.rstrip("_"): str(kind) for key, kind in declared(entry).items()} for name, entry in ENTRIES.items()}
    assert {name: options for name, options in found.items() if options} == EXPECTED


@pytest.mark.parametrize("entry", EXPECTED)
def test_right_and_wrong_values_of_every_option(entry: str) -> None:
    """As text and as values. Right ones become Python's own, so that two that are equal print alike, and so have one name."""
    for option, expected in EXPECTED[entry].items():
        right, wrong_text, wrong = CASES[expected]
        message = "^" + re.escape(f"`{entry}` got {option}=%s; expected {expected}").replace("%s", "{}") + "$"
        for text, value in right.items():
            if (option, value) == ("with_loss", False):
                continue  # asks for a module, which no text gives
            made = [_make(entry, option, text)]
            if isinstance(value, int | float) and not isinstance(value, bool):
                made.append(_new(entry, option, torch.tensor(value).numpy()[()]))
            for found in (getattr(one, _field(option)) for one in made):
                assert found == pytest.approx(value) if isinstance(value, float) else found == value
                assert type(found) is type(value)
        for text in wrong_text:
            with pytest.raises(ValueError, match=message.replace("{}", re.escape(text.strip()))):
                _make(entry, option, text)
        for bad in wrong:
            with pytest.raises(ValueError, match=message.replace("{}", re.escape(repr(bad)))):
                _new(entry, option, bad)


def test_describe_tells_default_and_what_is_taken() -> None:
    for name in [*ESTIMATORS, *NOISES, *(name for name in ORACLES if name != "linear_chain")]:
        told = " ".join(CliRunner().invoke(app, ["describe", name]).output.split())
        for field in dataclasses.fields(ENTRIES[name]):
            option, required = field.name.rstrip("_"), field.default is dataclasses.MISSING
            default = "(required)" if required else f"= {field.default!r}"
            assert f"{option} {default} ({EXPECTED[name][option]})" in told


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rloo[num_samples=2,num_samples=3]", "got the option 'num_samples' twice"),
        ("rloo[num_samples=]", "got the option 'num_samples=' in"),
        ("rloo[num_samples]", "got the option 'num_samples' in"),
        ("rloo[samples=3]", "got the unknown option 'samples'; did you mean num_samples?"),
        ("imle[noise=gumble]", "got the unknown noise 'gumble'; did you mean gumbel?"),
        ("imle[noise=gumbel/scale=-1]", "`gumbel` got scale=-1; expected a finite number > 0"),
        ("imle[noise=gumbel/scale]", "got the option 'scale' in"),
    ],
)
def test_names_that_are_not_options(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make_estimator(text)


def _field(option: str) -> str:
    return "lambda_" if option == "lambda" else option


def _make(entry: str, option: str, text: str) -> Any:
    if entry in NOISES:
        return make_noise(f"{entry}/{option}={text}")
    if entry in ORACLES:
        return make_oracle(f"{entry}[{option}={text}]")
    # Some options are possible only beside another.
    beside = ",num_samples=3" if option in ("baseline", "control_variate") else ",baseline=false" if _alone(entry, option) else ""
    return make_estimator(f"{entry}[{option}={text}{beside}]")


def _new(entry: str, option: str, value: Any) -> Any:
    return ENTRIES[entry](**{_field(option): value})


def _alone(entry: str, option: str) -> bool:
    return option == "num_samples" and "baseline" in EXPECTED[entry]
