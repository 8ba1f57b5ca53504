"""Plans by name: how much of the grid is measured, and how well."""

from dataclasses import dataclass, replace
from typing import Any

from ....estimators import ESTIMATORS
from ....estimators.own import shown_name
from ....oracles.registry import unknown
from ... import problems
from ...measures.suite import EFFORTS, Effort
from ...problems import BUILT_IN_PROBLEMS, OWN_LOSS
from ...tasks import TASKS
from ...tasks.references import LONGEST_LIST
from ...text import plural
from .plan import Plan, Portion

CORE = tuple(name for name, kind in ESTIMATORS.items() if kind.tier == "core")  # one estimator of every idea, and the exact gradient


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST_LEARNERS = _names("exact rloo[num_samples=4] simple ste imle spigot structured_attention sparsemap_marginalisation")
"""The estimators of a first look at training: the exact gradient, and one of every idea."""

LEARNERS = (  # the estimators of a full comparison of training; those that do not fit the structures of a task are skipped there
    *FIRST_LEARNERS,
    *_names("reinforce reinforce_running_mean reinforce_learned rloo[num_samples=2] rloo[num_samples=16] unordered_set"),
    *_names("ste_marginals ste_sample identity gumbel_softmax st_gumbel reinmax gumbel_crf perturb_and_map stochastic_softmax"),
    *_names("perturbed_optimizer spigot_ce blackbox aimle sparsemap differentiable_dp step_leave_one_out step_ste step_st_gumbel"),
)

STUDIED = (  # the estimators of the study of training: also an encoder that is not trained, and methods for the structures of one task
    f"exact[limit={LONGEST_LIST}]",
    *LEARNERS[1:],
    *_names("frozen relaxed_top_k spigot_eg spigot_steps step_reinforce step_learned step_ppo sparsemax_marginalisation top_k_sparsemax"),
    *_names("reinforce_constant reinforce_greedy reinforce_sampled reinforce_optimal reinforce_normalised"),
    *_names("reinforce_ppo vargrad muprop double_cv antithetic_pairs sum_and_sample importance_weighted_set identity_perturbed"),
    *_names("decoupled_st_gumbel perturb_and_parse stochastic_sparsemap perturbed_multiplicative"),
)

STUDY = tuple(
    f"{name}[steps=160]" if name in ("listops", "listops_parser") else name  # whose steps take the longest
    for name in TASKS
    if name not in ("ner", "parsing", "listops_generated")
)
"""The tasks of the study, without supervised ones and a smaller copy; `docs/results/learning.md` is written from it."""

STUDY_EFFORT = Effort(replicates=4096, most_replicates=4096, seconds=5.0, cap=200_000, equivalence=0.05, rounds=10)
"""Effort of gradients that are measured next to training."""

FIRST_ENTROPIES = ("h=0.95", "h=0.5", "h=0.1")  # a model before, during and after training

LOSSES = ("squared_distance_linear", "squared_distance", "black_box")
"""A loss that is linear between the structures, the quadratic one with the same values on structures, and a black-box loss."""

FIRST_LOSSES = ("squared_distance", "mlp", "black_box")
"""A loss that is linear on structures (at relaxed inputs too, marginals would be exact), a network of all parts, and a black-box loss."""

FIRST_PROBLEMS = ("subset_regimes", "chain_regimes", "projective_tree_regimes", "assignment_regimes")
"""Choices of parts, labels of a sequence, trees over words, and permutations."""

FIRST_ESTIMATORS = _names("exact reinforce rloo rloo[num_samples=4] ste identity imle structured_attention sparsemap spigot")
"""Estimators of different kinds: close relatives would be tied, and `unordered_set` takes a third of the time of all of them."""

SECOND = ("policy_regimes",)  # built-in problems of a structure that has another one


@dataclass(frozen=True)
class Preset:
    """A plan unless options change it; its problems are by default one of each structure, and with ``everything`` all of them."""

    summary: str
    plan: Plan
    everything: bool = False


ONCE, ONE_STAGE = Portion(instances=1, stages=1, losses=1), Portion(stages=1, losses=1)
PRESETS: dict[str, Preset] = {  # by name
    "quick": Preset(
        "a first look at four structures, three entropy levels and three losses in about two minutes",
        Plan(
            suites=("bias", "sparsity", "memory", "wall_clock"),
            problems=FIRST_PROBLEMS,
            stages=FIRST_ENTROPIES,
            estimators=FIRST_ESTIMATORS,
            losses=FIRST_LOSSES,
            instances=8,
            portions=(("sparsity", Portion(instances=2)), ("wall_clock", ONCE), ("memory", ONCE)),
            effort=EFFORTS["quick"],
        ),
    ),
    "standard": Preset(
        "all suites on every structure at four entropy levels, 32 instances each, for conclusions",
        Plan(
            stages=problems.ENTROPY_STAGES,
            estimators=CORE,
            losses=LOSSES,
            instances=32,
            portions=(
                ("wall_clock", ONE_STAGE),
                ("memory", Portion(instances=4, stages=1, losses=1)),
                ("scaling", ONCE),
                ("descent", Portion(instances=2, stages=1)),
            ),
            effort=EFFORTS["standard"],
        ),
    ),
    "thorough": Preset(
        "all estimators and problems at all entropy levels and stages of training, 60 instances each, for a paper",
        Plan(
            losses=(OWN_LOSS, *LOSSES),
            instances=60,  # the smallest real set has no more
            portions=tuple((name, ONE_STAGE) for name in ("wall_clock", "memory", "scaling")),
            effort=EFFORTS["thorough"],
        ),
        everything=True,
    ),
}

DEFAULT = "quick"


def plan_of(preset: str, **options: Any) -> Plan:
    """The plan of a preset with the given options (not None or empty); those for instances, stages or losses hold for all suites."""
    if preset not in PRESETS:
        raise ValueError(unknown(preset, PRESETS, "preset"))
    chosen, plan = PRESETS[preset], PRESETS[preset].plan
    given = {name: value for name, value in options.items() if value not in (None, ())}
    portions = ((suite, replace(portion, **dict.fromkeys(given.keys() & vars(portion).keys()))) for suite, portion in plan.portions)
    standard: dict[str, Any] = {"portions": tuple(item for item in portions if item[1] != Portion())}
    named = given.get("problems", ())
    tasks = [name for name in named if problems.comes_from_task(name)]
    only_tasks = bool(named) and len(tasks) == len(named)
    if only_tasks:
        standard["losses"] = ()
    if "file" in given:
        standard["problems"] = standard["stages"] = ()
    elif not plan.problems:
        every = (*BUILT_IN_PROBLEMS, *(name for name in problems.available(given.get("data")) if name not in BUILT_IN_PROBLEMS))
        standard["problems"] = every if chosen.everything else tuple(name for name in BUILT_IN_PROBLEMS if name not in SECOND)
    if plan.stages and tasks:
        # Stages of the preset are those of scores; all stages of the named tasks take part.
        of_tasks = [stage for pattern in tasks for name in problems.task_names(pattern) for stage in problems.stages_of(name)]
        standard["stages"] = (*(() if only_tasks else plan.stages), *dict.fromkeys(of_tasks))
    return replace(plan, **{**standard, **given})


def with_name(estimators: tuple[str, ...], name: str | None) -> tuple[str, ...]:
    """The names of a plan, of which the only estimator of one's own gets a name for tables, as in ``mine=./mine.py:Mine``."""
    if name is not None and (not name or set(name) & set("=[/:")):
        raise ValueError(f"--name got {name!r}; expected a name without =, [, / and :, such as mine")
    own = [one for one in estimators if ":" in one.partition("[")[0]]
    if name and (len(own) != 1 or shown_name(own[0])[0] != own[0]):
        raise ValueError(
            f"--name got {name!r} with {plural(len(own), 'estimator')} of one's own; expected one, or a name each: -e {name}=./mine.py:mine"
        )
    return tuple(f"{name}={one}" if name and one in own else one for one in estimators)


def learning_plan(  # noqa: PLR0913
    tasks: tuple[str, ...] = (),
    estimators: tuple[str, ...] = (),
    seeds: int | None = None,
    *,
    quick: bool = False,
    study: bool = False,
    losses: tuple[str, ...] = (),
    plugins: tuple[str, ...] = (),
) -> Plan:
    """The plan of ``structgrad learn``.

    By default the task is ``clusters`` with 5 seeds and `LEARNERS`; if ``quick``, with 3 seeds, `FIRST_LEARNERS`, three fifths of the
    steps, and one seed to choose rate and option with. A ``study`` has the tasks `STUDY` and the estimators `STUDIED` with as much effort
    as quick: ranks after half of the steps are near the final ones, so its time goes to tasks.
    """
    return Plan(
        suites=("references", "learning", "step_time"),
        problems=tuple(f"task:{name}" for name in tasks or (STUDY if study else ("clusters",))),
        estimators=estimators or (STUDIED if study else FIRST_LEARNERS if quick else LEARNERS),
        losses=losses,
        instances=seeds or (3 if quick else 5),
        effort=STUDY_EFFORT if quick or study else EFFORTS["standard"],
        plugins=plugins,
    )
