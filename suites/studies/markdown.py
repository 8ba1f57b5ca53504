"""Tables as text, for the commands that print reproduced results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Entry = str | int | float | None


def table(rows: Sequence[Mapping[str, Entry]], *, digits: int = 2) -> str:
    """A Markdown table of records that share their keys; numbers with so many digits after the point, None as a dash.

    Example:
        >>> print(table([{"set": "trees", "items": 3, "share": 0.5}, {"set": "tags", "items": 12, "share": None}]))
        | set | items | share |
        |---|---|---|
        | trees | 3 | 0.50 |
        | tags | 12 | – |
    """
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([_text(value, digits) for value in row.values()] for row in rows)]
    header, rule, *body = ("|" + "|".join(line) + "|" if line[0] == "---" else "| " + " | ".join(line) + " |" for line in lines)
    return "\n".join([header, rule, *body])


def _text(value: Entry, digits: int) -> str:
    if value is None:
        return "–"
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)
