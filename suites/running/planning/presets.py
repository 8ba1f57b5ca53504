"""Plans by name: how much of the grid is measured, and how well."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ....estimators import ESTIMATORS
from ....oracles.registry import unknown
from ... import problems
from ...measures.suite import EFFORTS, Effort
from ...problems import BUILT_IN_PROBLEMS, OWN_LOSS
from ...tasks.references import LONGEST_TRAINING_LIST
from .plan import Plan, Portion

CORE = tuple(name for name, kind in ESTIMATORS.items() if kind.tier == "core")
"""One estimator of every idea, and the exact gradient."""

FIRST_LEARNERS = (
    "exact",
    "rloo[num_samples=4]",
    "simple",
    "ste",
    "imle",
    "spigot",
    "structured_attention",
    "sparsemap_marginalisation",
)
"""What a first look at learning compares: the exact gradient, and one estimator of every idea."""

LEARNERS = (
    *FIRST_LEARNERS,
    "reinforce",
    "reinforce_running_mean",
    "reinforce_learned",
    "rloo[num_samples=2]",
    "rloo[num_samples=16]",
    "unordered_set",
    "ste_marginals",
    "ste_sample",
    "identity",
    "gumbel_softmax",
    "st_gumbel",
    "reinmax",
    "gumbel_crf",
    "perturb_and_map",
    "stochastic_softmax",
    "perturbed_optimizer",
    "spigot_ce",
    "blackbox",
    "aimle",
    "sparsemap",
    "differentiable_dp",
    "step_leave_one_out",
    "step_ste",
    "step_st_gumbel",
)
"""What learning is compared of in earnest; those that do not fit the structures of a task are skipped there."""

STUDIED = (
    f"exact[limit={LONGEST_TRAINING_LIST}]",
    *LEARNERS[1:],
    "frozen",
    "relaxed_top_k",
    "spigot_eg",
    "reinforce_normalised",
    "reinforce_ppo",
    "step_reinforce",
    "step_learned",
    "step_ppo",
)
"""What the study of learning compares: besides, an encoder that is not trained, and what is published for the structures of one task."""

STUDY = ("clusters", "l2x_switch", "fsdd", "listops_frozen", "listops", "listops_parser", "vae", "pipeline", "matching")
"""The tasks of the study: latent structures of nine kinds of models; `docs/results/learning.md` is written from it."""

STUDY_EFFORT = Effort(replicates=4096, most_replicates=4096, seconds=5.0, cap=200_000, equivalence=0.05, rounds=10)
"""Effort of the gradients that are measured next to training."""

ENTROPIES = ("h=0.95", "h=0.7", "h=0.4", "h=0.1")
"""From nearly uniform to nearly certain."""

FIRST_ENTROPIES = ("h=0.95", "h=0.5", "h=0.1")
"""A model before, during and after training."""

LOSSES = ("squared_distance_linear", "squared_distance", "black_box")
"""One loss that is linear between the structures, its twin that is the same on the structures and quadratic between them, and one that
gives values on structures and nothing else."""

FIRST_LOSSES = ("squared_distance", "mlp", "black_box")
"""A loss that is linear on structures, a network that couples all parts, and a loss without gradients. Of a loss that is linear at relaxed
inputs too, the relaxations by marginals are exact, so that nothing is to be measured."""

FIRST_PROBLEMS = ("subset_regimes", "chain_regimes", "projective_tree_regimes", "assignment_regimes")
"""Choices of parts, labels of a sequence, trees over words, and permutations."""

FIRST_ESTIMATORS = (
    "exact",
    "reinforce",
    "rloo",
    "rloo[num_samples=4]",
    "ste",
    "identity",
    "imle",
    "structured_attention",
    "sparsemap",
    "spigot",
)
"""Estimators that differ in kind: score functions with and without a baseline, straight-through, perturbation, and relaxations by
marginals and by projection. Close relatives would be tied with them, and `unordered_set` takes as long as a third of all of them."""

SECOND = ("policy_regimes",)
"""Built-in problems of a structure that has another one."""


@dataclass(frozen=True)
class Preset:
    """What a plan holds where no option says otherwise; empty means all.

    Attributes:
        summary: one line.
        suites, problems, estimators, stages, losses, instances, portions: as in `Plan`.
        longest: seconds; a plan with a cell that is estimated to take longer is refused.
        problems: names; empty for a built-in one of every structure.
        everything: whether more than one problem per structure takes part: `SECOND`, and real ones at their stages of training.
    """

    summary: str
    suites: tuple[str, ...]
    estimators: tuple[str, ...]
    stages: tuple[str, ...]
    losses: tuple[str, ...]
    instances: int
    portions: Mapping[str, Portion] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    everything: bool = False
    longest: float = 3600.0


PRESETS: dict[str, Preset] = {
    "quick": Preset(
        "a first look at four structures, three entropy levels and three losses, about two minutes",
        ("bias", "sparsity", "memory", "wall_clock"),
        FIRST_ESTIMATORS,
        FIRST_ENTROPIES,
        FIRST_LOSSES,
        8,
        {
            "sparsity": Portion(instances=2),
            "wall_clock": Portion(instances=1, stages=1, losses=1),
            "memory": Portion(instances=1, stages=1, losses=1),
        },
        problems=FIRST_PROBLEMS,
    ),
    "standard": Preset(
        "all suites on every structure at four entropies, 32 instances each: for conclusions",
        (),
        CORE,
        ENTROPIES,
        LOSSES,
        32,
        {
            "wall_clock": Portion(stages=1, losses=1),
            "memory": Portion(instances=4, stages=1, losses=1),
            "scaling": Portion(instances=1, stages=1, losses=1),
            "descent": Portion(instances=2, stages=1),
        },
    ),
    "thorough": Preset(
        "all estimators, all problems and their stages of training, 60 instances each: for a paper",
        (),
        (),
        (),
        (OWN_LOSS, *LOSSES),
        60,  # the smallest real set has no more
        {name: Portion(stages=1, losses=1) for name in ("wall_clock", "memory", "scaling")},
        everything=True,
        longest=math.inf,
    ),
}
"""By name; how much work goes into one answer is in `EFFORTS`."""

DEFAULT = "quick"


def plan_of(preset: str, **options: Any) -> Plan:
    """The plan of a preset, with every option that is given (and not None or empty) in its place.

    An option that says how many instances, which stages or which losses holds for all suites.

    Raises:
        ValueError: an unknown preset.

    Example:
        >>> plan = plan_of("quick", instances=2, suites=("bias",))
        >>> plan.instances, plan.suites, plan.effort.replicates, "rloo" in plan.estimators
        (2, ('bias',), 512, True)
    """
    if preset not in PRESETS:
        raise ValueError(unknown(preset, PRESETS, "preset"))
    chosen = PRESETS[preset]
    given = {name: value for name, value in options.items() if value not in (None, ())}
    portions = {
        name: Portion(**{field: most for field, most in vars(portion).items() if field not in given})
        for name, portion in chosen.portions.items()
    }
    standard = {
        "suites": chosen.suites,
        "estimators": chosen.estimators,
        "instances": chosen.instances,
        "portions": tuple(item for item in portions.items() if item[1] != Portion()),
        "effort": EFFORTS[preset],
    }
    named = given.get("problems", ())
    scores: dict[str, Any] = {} if all(problems.comes_from_task(name) for name in named) and named else {"losses": chosen.losses}
    if "file" not in given:
        scores |= {"problems": _problems(chosen, given.get("data")), "stages": _stages(chosen, named)}
    return Plan(**{**standard, **scores, **given})


def learning_plan(
    tasks: tuple[str, ...] = (),
    estimators: tuple[str, ...] = (),
    seeds: int | None = None,
    *,
    quick: bool = False,
    study: bool = False,
    **options: Any,
) -> Plan:
    """The plan of ``structgrad learn``.

    Args:
        tasks: names, ``clusters`` where there are none, with sizes in brackets where they are others, or ``file.py:Class``.
        estimators: names; empty for `LEARNERS`, or `FIRST_LEARNERS` where it is to be quick, or `STUDIED`.
        seeds: of a test; None for 5, or 3 where it is to be quick.
        quick: three fifths of the steps, and one seed to choose rate and option with.
        study: so much of `STUDY` where there are no tasks: half-way ranks are near to final ones, so that its time goes to tasks and seeds.
        options: others of the plan.

    Example:
        >>> plan = learning_plan(quick=True)
        >>> plan.suites, plan.problems, plan.instances, len(plan.estimators)
        (('references', 'learning', 'step_time'), ('task:clusters',), 3, 8)
    """
    names = estimators or (STUDIED if study else FIRST_LEARNERS if quick else LEARNERS)
    return Plan(
        suites=("references", "learning", "step_time"),
        problems=tuple(f"task:{name}" for name in tasks or (STUDY if study else ("clusters",))),
        estimators=names,
        instances=seeds or (3 if quick else 5),
        effort=STUDY_EFFORT if quick or study else EFFORTS["standard"],
        **options,
    )


def _stages(preset: Preset, names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the preset, which are stages of scores, and all of the tasks that are named."""
    tasks = [name for name in names if problems.comes_from_task(name)]
    of_tasks = dict.fromkeys(stage for pattern in tasks for name in problems.task_names(pattern) for stage in problems.stages_of(name))
    of_scores = preset.stages if len(tasks) < len(names) or not names else ()
    return (*of_scores, *of_tasks) if preset.stages else ()


def _problems(preset: Preset, data: str | None) -> tuple[str, ...]:
    """A built-in problem for every structure, or all of them and the real problems whose files are there."""
    if preset.problems:
        return preset.problems
    if not preset.everything:
        return tuple(name for name in BUILT_IN_PROBLEMS if name not in SECOND)
    return (*BUILT_IN_PROBLEMS, *(name for name in problems.available(data) if name not in BUILT_IN_PROBLEMS))
