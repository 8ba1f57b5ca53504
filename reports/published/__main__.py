"""``python -m structgrad.reports.published RUN [RUN ...]``: the published table, made of finished runs."""

import argparse
from pathlib import Path

from . import FOLDER, write


def main(words: list[str] | None = None) -> None:
    """Write the table and the facts about its runs."""
    parser = argparse.ArgumentParser(prog="python -m structgrad.reports.published", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="the folder of a finished run")
    parser.add_argument("--to", type=Path, default=FOLDER, help="a folder; by default that of the package")
    given = parser.parse_args(words)
    try:
        path = write(*given.runs, folder=given.to)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(f"published: {path.stat().st_size} bytes in {path}")  # noqa: T201


if __name__ == "__main__":
    main()
