"""The operators: each finds the places of a source at which it can put a fault, as spans with the text that replaces them.

Some places are left out, because no test or every test would notice. These are docstrings, strings, annotations, imports, `__all__`,
decorators, blocks of type checkers and of ``__main__``, abstract bodies, messages of errors, and options that change speed alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

SPEED_ALONE = {"maxsize", "num_warps", "num_stages", "stacklevel", "dpi", "max_workers"}
"""Names of options that change no result."""


@dataclass(frozen=True)
class Site:
    """A span of a source, in bytes, and the text that an operator puts in its place."""

    operator: str
    start: int
    end: int
    after: str
    scope: str


@dataclass(frozen=True)
class Source:
    """A source as bytes, with the start of each line."""

    data: bytes
    starts: tuple[int, ...]

    @classmethod
    def of(cls, text: str) -> Source:
        """Make a source of its text."""
        starts = [0]
        for line in text.encode().splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        return cls(text.encode(), tuple(starts))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Where a node begins and ends; ``ast`` counts columns in bytes."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.expr | ast.stmt) -> str:
        """The text of a node."""
        start, end = self.span(node)
        return self.data[start:end].decode()


@dataclass(frozen=True)
class Visit:
    """A node with the nodes around it, the outermost first."""

    node: ast.AST
    around: tuple[ast.AST, ...]

    @property
    def scope(self) -> str:
        """The names of the classes and functions around it, with dots."""
        return ".".join(node.name for node in self.around if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef))

    def function(self) -> ast.FunctionDef | None:
        """The innermost function around it."""
        return next((node for node in reversed(self.around) if isinstance(node, ast.FunctionDef)), None)


Found = Iterator[tuple[int, int, str]]
Operator = Callable[[Source, Visit], Found]


def _between(source: Source, left: ast.expr, right: ast.expr, symbol: str, after: str) -> Found:
    """The span of an operator's symbol between its operands."""
    first, last = source.span(left)[1], source.span(right)[0]
    match = re.search(rf"(?<![\w]){re.escape(symbol)}(?![\w])".replace(" ", r"\s+").encode(), source.data[first:last])
    if match is not None:
        yield first + match.start(), first + match.end(), after


COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}


def comparison(source: Source, visit: Visit) -> Found:
    """``<`` becomes ``<=``, ``==`` becomes ``!=``, ``in`` becomes ``not in``, and back."""
    if isinstance(visit.node, ast.Compare):
        operands = [visit.node.left, *visit.node.comparators]
        for kind, left, right in zip(visit.node.ops, operands, operands[1:], strict=False):
            yield from _between(source, left, right, *COMPARISONS[type(kind)])


ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
}


def arithmetic(source: Source, visit: Visit) -> Found:
    """``+`` becomes ``-``, ``*`` becomes ``/``, and back; not for text or lists, where that only raises an error."""
    node = visit.node
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not any(map(_is_sequence, (node.left, node.right))):
        yield from _between(source, node.left, node.right, *ARITHMETIC[type(node.op)])
    if isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC and not _is_sequence(node.value):
        symbol, after = ARITHMETIC[type(node.op)]
        yield from _between(source, node.target, node.value, f"{symbol}=", f"{after}=")


def _is_sequence(node: ast.expr) -> bool:
    return isinstance(node, ast.List | ast.Tuple | ast.ListComp | ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def connective(source: Source, visit: Visit) -> Found:
    """``and`` becomes ``or``, ``&`` becomes ``|``, and back."""
    node = visit.node
    if isinstance(node, ast.BoolOp):
        symbols = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from _between(source, left, right, *symbols)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr) and visit.function() is not None:
        symbols = ("&", "|") if isinstance(node.op, ast.BitAnd) else ("|", "&")
        if not any(isinstance(above, ast.Call) and _name(above) in {"isinstance", "issubclass", "cast"} for above in visit.around):
            yield from _between(source, node.left, node.right, *symbols)


def negation(source: Source, visit: Visit) -> Found:
    """``not``, ``~`` and the sign of an expression that is no number are dropped."""
    if isinstance(visit.node, ast.UnaryOp) and isinstance(visit.node.op, ast.Not | ast.Invert | ast.USub):
        start, end = source.span(visit.node)
        yield start, end, f"({source.text(visit.node.operand)})"


def condition(source: Source, visit: Visit) -> Found:
    """A condition is always true, or never."""
    node = visit.node
    tests = [node.test] if isinstance(node, ast.If | ast.IfExp) else node.ifs if isinstance(node, ast.comprehension) else []
    for test in tests:
        yield from ((*source.span(test), constant) for constant in ("True", "False") if source.text(test) != constant)


def constant(source: Source, visit: Visit) -> Found:
    """An integer is one more or one less, another number twice as large, a truth value the other one."""
    node = visit.node
    if isinstance(node, ast.Constant) and not _is_field(visit) and not any(isinstance(above, ast.arguments) for above in visit.around):
        for after in _other(node.value):
            yield *source.span(node), after


def default(source: Source, visit: Visit) -> Found:
    """The default of an argument, or of the field of a class, is another one."""
    node = visit.node
    if isinstance(node, ast.Constant) and visit.around and (isinstance(visit.around[-1], ast.arguments) or _is_field(visit)):
        for after in _other(node.value):
            yield *source.span(node), after


def _is_field(visit: Visit) -> bool:
    return len(visit.around) > 1 and isinstance(visit.around[-1], ast.AnnAssign) and isinstance(visit.around[-2], ast.ClassDef)


def _other(value: object) -> tuple[str, ...]:
    if isinstance(value, bool):
        return (str(not value),)
    if isinstance(value, int):
        return str(value + 1), str(value - 1)
    return (repr(2 * value or 1.0),) if isinstance(value, float) else ()


OPPOSITES = {
    "min": "max",
    "amin": "amax",
    "minimum": "maximum",
    "argmin": "argmax",
    "fmin": "fmax",
    "clamp_min": "clamp_max",
    "floor": "ceil",
    "any": "all",
    "zeros": "ones",
    "zeros_like": "ones_like",
    "least": "greatest",
    "sum": "prod",
    "log": "log1p",
    "exp": "expm1",
    "cos": "sin",
    "startswith": "endswith",
    "removeprefix": "removesuffix",
}
OPPOSITES |= {after: before for before, after in OPPOSITES.items()}


def function(source: Source, visit: Visit) -> Found:
    """A function becomes its opposite or its neighbour: minimum and maximum, floor and ceiling, any and all."""
    node = visit.node
    if isinstance(node, ast.Call) and (name := _name(node)) in OPPOSITES:
        built_in = isinstance(node.func, ast.Name)
        _, end = source.span(node.func)
        if not (built_in and OPPOSITES[name] not in {"min", "max", "any", "all", "least", "greatest"}):
            yield end - len(name.encode()), end, OPPOSITES[name]


def _name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def choice(source: Source, visit: Visit) -> Found:
    """The two sides of `where`, and of a conditional expression, change places; `masked_fill` fills the others."""
    node = visit.node
    if isinstance(node, ast.Call) and _name(node) in {"where", "where_greater", "select"} and len(node.args) >= 3:
        yield _swapped(source, *node.args[-2:])
    if isinstance(node, ast.IfExp):
        start, end = source.span(node)
        yield start, end, f"{source.text(node.orelse)} if {source.text(node.test)} else {source.text(node.body)}"
    if isinstance(node, ast.Call) and _name(node) in {"masked_fill", "masked_fill_"} and node.args:
        yield *source.span(node.args[0]), f"~({source.text(node.args[0])})"


def _swapped(source: Source, left: ast.expr, right: ast.expr) -> tuple[int, int, str]:
    (start, first), (second, end) = source.span(left), source.span(right)
    return start, end, source.text(right) + source.data[first:second].decode() + source.text(left)


def statement(source: Source, visit: Visit) -> Found:
    """A statement is dropped: a call, an assignment to a known name, a check, an early return."""
    if _can_be_dropped(visit):
        assert isinstance(visit.node, ast.stmt)
        yield *source.span(visit.node), "pass"


def _can_be_dropped(visit: Visit) -> bool:
    node, inside = visit.node, visit.function()
    if inside is None:
        return False
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    if isinstance(node, ast.Return):
        return node is not inside.body[-1] and isinstance(visit.around[-1], ast.If)
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) or _known(target, node, inside) for target in node.targets)
    return isinstance(node, ast.AugAssign | ast.Raise | ast.Continue | ast.Break)


def _known(target: ast.expr, node: ast.stmt, inside: ast.FunctionDef) -> bool:
    """Whether a name is an argument of the function, or is assigned in its body before, at the outermost level."""
    if not isinstance(target, ast.Name):
        return False
    before = [other for other in inside.body if isinstance(other, ast.Assign) and other.lineno < node.lineno]
    stored = {name.id for other in before for name in ast.walk(other) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
    return target.id in stored | {argument.arg for argument in (*inside.args.args, *inside.args.kwonlyargs)}


OPERATORS: tuple[Operator, ...] = (comparison, arithmetic, connective, negation, condition, constant, default, function, choice, statement)


def sites(text: str) -> list[Site]:
    """Every place of a source at which some operator can put a fault."""
    source = Source.of(text)
    return [
        Site(operator.__name__, start, end, after, visit.scope)
        for visit in _visits(ast.parse(text), ())
        for operator in OPERATORS
        for start, end, after in operator(source, visit)
    ]


def mutated(text: str, site: Site) -> str:
    """A source with the fault in it."""
    data = text.encode()
    return (data[: site.start] + site.after.encode() + data[site.end :]).decode()


def differs(before: str, after: str) -> bool:
    """Whether a mutant is a source, and another one than before."""
    try:
        compile(after, "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return ast.dump(ast.parse(before)) != ast.dump(ast.parse(after))


def _visits(node: ast.AST, around: tuple[ast.AST, ...]) -> Iterator[Visit]:
    """A node and those below it, without the places that are left out."""
    yield Visit(node, around)
    for child in _children(node):
        yield from _visits(child, (*around, node))


def _children(node: ast.AST) -> Iterator[ast.AST]:
    left_out = _left_out(node)
    for field, value in ast.iter_fields(node):
        if field not in left_out:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not _says_nothing(child):
                    yield child


def _left_out(node: ast.AST) -> set[str]:
    """The fields of a node in which nothing is changed."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        declared = any(ast.unparse(decorator).endswith(("abstractmethod", "overload")) for decorator in node.decorator_list)
        return {"decorator_list", "returns", "type_params"} | ({"body"} if declared else set())
    if isinstance(node, ast.ClassDef):
        return {"decorator_list", "bases", "keywords", "type_params"}
    return {"annotation", "msg", "exc", "cause"}


def _says_nothing(node: ast.AST) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr | ast.Global | ast.Nonlocal):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.If):
        return ast.unparse(node.test).startswith(("TYPE_CHECKING", "typing.TYPE_CHECKING", "__name__"))
    if isinstance(node, ast.keyword):
        return node.arg in SPEED_ALONE
    return isinstance(node, ast.Assign) and any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)
