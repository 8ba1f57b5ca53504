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
            help=r"A structure by name, with sizes or without: spanning_tree, 'subset\[n=20,k=5]'.",
            metavar="NAME",
            show_default=False,
            autocompletion=names.complete_oracles,
        ),
    ],
    loss_gradients: Annotated[
        str, typer.Option(help="Whether the loss has gradients in the structure, or else gives values only: yes or no.", metavar="YES|NO")
    ] = "yes",
    unbiased: Annotated[bool, typer.Option("--unbiased", help="Unbiased estimators alone.")] = False,
    batch: Annotated[int, typer.Option(help="Items of a batch, whose estimates are averaged.", metavar="B")] = 32,
    loss_cost: Annotated[
        float,
        typer.Option(help="How many times as long as a REINFORCE estimate one evaluation of your loss takes.", metavar="X"),
    ] = 0.0,
    stage: Annotated[
        str,
        typer.Option(
            "--stage",
            "--entropy-level",
            help="The entropy level: init, early, final (of training), or h=<normalised entropy>.",
            metavar="LEVEL",
            autocompletion=names.complete_stages,
        ),
    ] = "early",
    run: Annotated[
        str | None,
        typer.Option(
            help="A run, its folder or its results.parquet, also under a URL; or “published”, the table of the package.",
            metavar="DIR",
            show_default="your newest finished run on a score file with this structure in ./structgrad-results, else published",
        ),
    ] = None,
    whole: Annotated[bool, typer.Option("--all", help="Also print all eligible estimators in their order.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Recommend an estimator, with its ties and the evidence, from measurements that exist already.

    All candidates get the same time, that of a REINFORCE estimate for each item of the batch. They are ordered by ρ = E⟨ĝ, g⟩ / (‖g‖
    √E‖ĝ‖²) of their average ĝ, with the exact gradient g. Estimators that mostly return 0 are left out.
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
