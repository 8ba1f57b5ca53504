"""A plugin of asv, named in `asv.conf.json`: tables on the console have one line per measured value.

asv prints the whole product of the parameters, even if ``-b`` selects a few: for nine timed calls, 276 lines that end in n/a.
"""

from __future__ import annotations


def setup() -> None:
    """Called by asv, when it reads its configuration."""
    from asv import results  # environments of measured commits have no asv

    table = results._format_benchmark_result
    # No width, no columns: asv would fold the last parameters into them.
    results._format_benchmark_result = lambda result, benchmark, max_width=0: [
        line for line in table(result, benchmark, max_width) if line.split()[-1:] != ["n/a"]
    ]
