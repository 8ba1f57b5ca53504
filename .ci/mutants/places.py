"""A stored fault, and how its place is found again after the source around it has moved."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
from dataclasses import dataclass
from typing import Any

from mutants.operators import Site


@dataclass(frozen=True)
class Mutation:
    """One fault, found by its lines; if these occur more than once, by its scope and count."""

    id: str
    stratum: str
    file: str
    line: int
    scope: str
    operator: str
    before: str
    after: str
    lines: str
    column: int
    count: int
    tests: tuple[str, ...]
    choose: str

    @classmethod
    def of(cls, entry: dict[str, Any]) -> Mutation:
        """Make a mutation of its stored form."""
        return cls(**{**entry, "tests": tuple(entry["tests"])})

    def stored(self) -> dict[str, Any]:
        """The stored form."""
        return {**dataclasses.asdict(self), "tests": list(self.tests)}

    def place(self, text: str) -> tuple[int, int] | None:
        """The span of the fault in the present source, in bytes; None if its lines are gone."""
        data, lines = text.encode(), self.lines.encode()
        found = [at for at in _starts(data, lines) if data[at + self.column :].startswith(self.before.encode())]
        inside = [at for at in found if scope_at(text, at) == self.scope]
        if inside:
            found = inside[min(self.count, len(inside) - 1) :]
        elif len(found) != 1:
            return None
        start = found[0] + self.column
        return start, start + len(self.before.encode())

    def applied(self, text: str) -> str | None:
        """The source with the fault; None if its place is gone."""
        span = self.place(text)
        if span is None:
            return None
        data = text.encode()
        return (data[: span[0]] + self.after.encode() + data[span[1] :]).decode()


@dataclass(frozen=True)
class Origin:
    """Where a mutation is from, and the tests that should see it."""

    stratum: str
    file: str
    tests: tuple[str, ...]
    choose: str


def mutation(text: str, site: Site, origin: Origin) -> Mutation:
    """The mutation of a site."""
    data = text.encode()
    first = data.rfind(b"\n", 0, site.start) + 1
    last = data.find(b"\n", site.end)
    lines = data[first : last if last >= 0 else len(data)]
    scope = scope_at(text, first)
    count = [at for at in _starts(data, lines) if scope_at(text, at) == scope].index(first)
    name = hashlib.sha256(f"{origin.file} {scope} {lines!r} {site.start - first} {site.after} {count}".encode()).hexdigest()[:6]
    return Mutation(
        id=f"{origin.file.removesuffix('.py').replace('/', '.')}-{name}",
        **vars(origin),
        line=data.count(b"\n", 0, site.start) + 1,
        scope=scope,
        operator=site.operator,
        before=data[site.start : site.end].decode(),
        after=site.after,
        lines=lines.decode(),
        column=site.start - first,
        count=count,
    )


def scope_at(text: str, start: int) -> str:
    """The names of the classes and functions around the line that begins at a byte, with dots."""
    line = text.encode().count(b"\n", 0, start) + 1
    names: list[str] = []
    body: list[ast.stmt] = ast.parse(text).body
    while True:
        around = next((child for child in body if child.lineno <= line <= (child.end_lineno or child.lineno)), None)
        if not isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return ".".join(names)
        names.append(around.name)
        body = around.body


def _starts(data: bytes, lines: bytes) -> list[int]:
    """Starts of these lines in a source."""
    found, at = [], data.find(lines)
    while at >= 0:
        if (at == 0 or data[at - 1] == ord("\n")) and data[at + len(lines) :][:1] in {b"\n", b""}:
            found.append(at)
        at = data.find(lines, at + 1)
    return found
