"""Grid of the benchmarks: a small part by default, all of it with ``STRUCTGRAD_ASV=full``.

asv hands a benchmark of an old commit the place of its parameters in the list, not the parameters. A list that followed the registries
would be another one there, and a number would go by another's name; so lists are written out. Between commits, and between the default and
the full grid, asv joins results by the parameters themselves.
"""

from __future__ import annotations

import os

DEFAULT, FULL = "", "full"
MODE = os.environ.get("STRUCTGRAD_ASV", DEFAULT)

ESTIMATORS = """
exact reinforce reinforce_constant reinforce_running_mean reinforce_greedy reinforce_sampled reinforce_optimal reinforce_learned
reinforce_conditional_mean reinforce_normalised reinforce_ppo rloo vargrad sum_and_sample unordered_set importance_weighted_set
arm disarm arsm rebar relax
step_reinforce step_greedy step_sampled step_conditional_mean step_optimal step_learned step_leave_one_out step_ppo
ste ste_marginals ste_sample simple step_ste identity identity_perturbed
gst reinmax reinmax_rao gumbel_softmax st_gumbel gumbel_rao step_st_gumbel relaxed_top_k relaxed_top_k_st gumbel_crf gumbel_crf_st
perturb_and_map perturb_and_parse stochastic_softmax stochastic_sparsemap perturbed_optimizer perturbed_multiplicative
spigot spigot_steps spigot_ce spigot_eg blackbox imle aimle
structured_attention differentiable_dp entmax fusedmax oscarmax csparsemax csoftmax
sparsemap sparsemap_marginalisation sparsemax_marginalisation top_k_sparsemax
""".split()  # noqa: SIM905 - a page long otherwise
"""All of them, new ones last: an estimator that comes must be added here."""

CASES: dict[str, tuple[str, tuple[int, ...]]] = {
    "subset 10/5": ("subset[k=5]", (10,)),
    "categories 10x2": ("categories", (10, 2)),
    "linear_chain 5x3": ("linear_chain", (5, 3, 3)),
    "policy 5": ("shift_reduce[normalization=local]", (6, 6, 2)),
    "categorical 10": ("categorical", (10,)),
    "alignment 5x5": ("alignment", (5, 5)),
    "constituency 6": ("constituency", (6, 6)),
    "projective_tree 5": ("projective_tree", (6, 6)),
    "spanning_tree 5": ("spanning_tree", (6, 6)),
    "assignment 5": ("assignment", (5, 5)),
    "shift_reduce 5": ("shift_reduce", (6, 6, 2)),
    "semi_markov 5": ("semi_markov", (5, 3, 2, 2)),
    "labelled_constituency 4": ("labelled_constituency", (4, 4, 2)),
    "ctc 7/2": ("ctc", (7, 5, 3)),
    "edit_alignment 4x4": ("edit_alignment", (5, 5, 5)),
    "second_order_chain 5x3": ("second_order_chain", (5, 3, 3, 3)),
    "categorical 1000": ("categorical", (1000,)),
    "categories 32x16": ("categories", (32, 16)),
    "subset 20/5": ("subset[k=5]", (20,)),
    "linear_chain 32x16": ("linear_chain", (32, 16, 16)),
    "alignment 32x32": ("alignment", (32, 32)),
    "constituency 10": ("constituency", (10, 10)),
    "projective_tree 10": ("projective_tree", (11, 11)),
    "spanning_tree 10": ("spanning_tree", (11, 11)),
    "assignment 8": ("assignment", (8, 8)),
    "shift_reduce 20": ("shift_reduce", (21, 21, 2)),
    "semi_markov 32": ("semi_markov", (32, 4, 8, 8)),
    "labelled_constituency 10": ("labelled_constituency", (10, 10, 8)),
    "ctc 64/16": ("ctc", (64, 33, 3)),
    "edit_alignment 32x32": ("edit_alignment", (33, 33, 5)),
    "second_order_chain 32x8": ("second_order_chain", (32, 8, 8, 8)),
    "policy 20": ("shift_reduce[normalization=local]", (21, 21, 2)),
    "subset 1000/10": ("subset[k=10]", (1000,)),
    "linear_chain 128x32": ("linear_chain", (128, 32, 32)),
    "alignment 128x128": ("alignment", (128, 128)),
    "constituency 40": ("constituency", (40, 40)),
    "projective_tree 40": ("projective_tree", (41, 41)),
    "spanning_tree 40": ("spanning_tree", (41, 41)),
    "assignment 64": ("assignment", (64, 64)),
}
"""An oracle with options, and the shape of one score tensor; small, middle and large."""

HOMES = tuple(CASES)[:4]
"""Where estimators are measured by default: each on the first that it serves."""

SMALL, MIDDLE, LARGE = tuple(CASES)[:16], tuple(CASES)[16:32], tuple(CASES)[32:]
ONE_OF_EACH = MIDDLE[:15]
"""Where the operations of oracles are timed by default."""

TASKS = "clusters l2x_switch listops_frozen listops listops_parser matching fsdd ner parsing pipeline vae listops_generated".split()  # noqa: SIM905
"""What is learnt, new ones last: a task that comes must be added here."""

LEARNERS, OTHER_LEARNERS = ("rloo", "structured_attention"), ("exact", "ste", "sparsemap", "imle")

BATCH, OTHER_BATCHES = (64,), (1, 1024)
DEVICE, OTHER_DEVICES = ("cpu",), ("cuda",)


def chosen(default: tuple[str | int, ...], more: tuple[str | int, ...], mode: str = MODE) -> list[str | int]:
    """The default, and in the full grid the rest behind it.

    Raises:
        ValueError: a mode that there is not.
    """
    if mode not in (DEFAULT, FULL):
        raise ValueError(f"STRUCTGRAD_ASV is {mode!r}; expected {FULL!r}, or nothing for the default")
    return [*default, *(more if mode == FULL else ())]
