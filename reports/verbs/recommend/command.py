"""``structgrad recommend``: which estimator to take for a structure, a loss, a batch and a state of the model."""

from __future__ import annotations

from typing import Annotated

import typer

from ..describe import names
from ..outcome import sentences

_ANSWERS = {"yes": True, "no": False}


def recommend(  # noqa: PLR0913 - one parameter per option
    *,
    oracle: Annotated[
        str,
        typer.Option(
            help=r"Structure, with or without sizes: spanning_tree, 'subset\[n=20,k=5]'.",
            metavar="NAME",
            show_default=False,
            autocompletion=names.complete_oracles,
        ),
    ],
    loss_gradients: Annotated[
        str, typer.Option(help="yes if your loss is differentiable at relaxed inputs; no if it is a black box.", metavar="YES|NO")
    ] = "yes",
    unbiased: Annotated[bool, typer.Option("--unbiased", help="Only unbiased estimators.")] = False,
    batch: Annotated[int, typer.Option(help="Batch size; estimates are averaged over the batch.", metavar="B")] = 32,
    loss_cost: Annotated[
        float,
        typer.Option(help="Time of one evaluation of your loss, in units of one REINFORCE estimate.", metavar="X"),
    ] = 0.0,
    stage: Annotated[
        str,
        typer.Option(
            "--stage",
            "--entropy-level",
            help="Entropy level of your model: init, early, final, or h=<entropy / maximal entropy>, such as h=0.4.",
            metavar="LEVEL",
            autocompletion=names.complete_stages,
        ),
    ] = "early",
    run: Annotated[
        str | None,
        typer.Option(
            help="Your own run: a folder, a results.parquet, or a URL; or “published”, the table of the package.",
            metavar="DIR",
            show_default="your newest finished run on a score file with this structure in ./structgrad-results, else published",
        ),
    ] = None,
    whole: Annotated[bool, typer.Option("--all", help="Also print all eligible estimators in their order.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Recommend an estimator for your structure, loss, batch size and entropy level, from existing measurements.

    Every candidate gets the time of one REINFORCE estimate per item of the batch. Candidates are ordered by
    ρ = E⟨ĝ, g⟩ / (‖g‖ √E‖ĝ‖²), with ĝ the average over the batch and g the exact gradient: 1 is as good as g, 0 is useless.
    Ties are listed. An estimator whose average is exactly 0 in most cases is never recommended.
    """
    with sentences():
        if loss_gradients not in _ANSWERS:
            raise ValueError(f"--loss-gradients got {loss_gradients!r}; expected yes or no")
        from ...analysis.recommendation import newest_run
        from ...analysis.recommendation import recommend as found_by
        from ...published import NAME
        from . import wording

        found = found_by(
            oracle,
            loss_gradients=_ANSWERS[loss_gradients],
            unbiased=unbiased,
            batch=batch,
            loss_cost=loss_cost,
            stage=stage,
            run=newest_run(oracle) if run is None else None if run == NAME else run,
        )
        typer.echo(wording.as_json(found) if as_json else "\n".join(wording.lines(found, whole=whole)))
