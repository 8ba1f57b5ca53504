"""Would the tests notice? Small faults in all rooms, drawn by a rule.

Usage: ``python .ci/mutations.py draw``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from mutants import drawing

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".json")


def draw(_: argparse.Namespace) -> int:
    """Draw the list anew from the sources as they are: the same one, as long as they are the same."""
    found = drawing.drawn(ROOT)
    LIST.write_text(json.dumps([mutation.stored() for mutation in found], indent=1, ensure_ascii=False) + "\n")
    print(f"{len(found)} mutations: {dict(Counter(mutation.file.split('/')[0] for mutation in found))}")  # noqa: T201
    return 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    for command in (draw,):
        added = commands.add_parser(command.__name__, help=command.__doc__)
        added.set_defaults(command=command)
    options = parser.parse_args()
    status: int = options.command(options)
    return status


if __name__ == "__main__":
    sys.exit(main())
