"""``python -m structgrad.suites.speed``: time the oracles against every peer that is installed; ``--help`` says more."""

from __future__ import annotations

import os


def run() -> None:
    """Ask every library for one thread, which they read once, when they are imported; then measure."""
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    os.environ.setdefault("JAXTYPING_DISABLE", "1")  # synjax's annotations refuse newer versions of what checks them
    import typer

    from .table import main

    typer.run(main)


if __name__ == "__main__":
    run()
