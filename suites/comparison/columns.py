"""Comparison by columns: what `verdicts` says of one pair of numbers, of all pairs of a block of two large runs at once.

A block holds all rows of some problems. What is plain there, both numbers present and from cells that did not fail, is compared in arrays;
the rest goes through `verdicts` row by row. Both give the same verdicts, and numbers that differ in the last bits at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy

from ..base import FAILED, Row
from ..metrics import RTOL, Rule, rule_of
from ..statistics.interval import BATCHES, LEVEL
from .gains import AT_GAIN, LEAST, SURE
from .matching import _DECLARED, _FACTS, _MACHINE, PART_OF_THE_SAME, Key, Machine, _fact, match
from .pooling import pooled
from .settings import PATTERNS, Settings
from .verdicts import LARGEST_RATIO, MEANING, SMALLEST_SHARE, Draft, drafts

if TYPE_CHECKING:
    import pyarrow as pa

VERDICTS = list(MEANING)
METHODS = ("", "exact", "paired", "independent")
UNKNOWN = "the error of one of them is not known"
_NORMAL = 1e9
_CLOSE = 1e-12

COLUMNS = (
    *Key._fields,
    *("status", "reason", "value", "low", "high", "interval", "unit", "tier", "replicates", "batches", "seed"),
    *(name for name in _DECLARED if name not in Key._fields),
    *_FACTS,
    *("unbiased", "deterministic", "objective", "verdict", "p_value"),
)
"""What is read of a large run."""

_REQUIRED = {one.name: "" for one in fields(Row) if one.default is MISSING}


# Sides: one row of each pair.


@dataclass(frozen=True)
class EstimateColumns:
    """`contrasts.Estimate` of many rows, which have equally many batches [row, batch]; ``known`` where there is one."""

    value: np.ndarray
    error: np.ndarray
    degrees: np.ndarray
    batches: np.ndarray
    known: np.ndarray

    @classmethod
    def jackknifed(cls, value: np.ndarray, batches: np.ndarray, known: np.ndarray) -> EstimateColumns:
        """With the errors that their batches say."""
        return cls(value, jackknife(batches), np.full(len(value), batches.shape[1] - 1.0), batches, known)

    def __getitem__(self, chosen: np.ndarray) -> EstimateColumns:
        return EstimateColumns(*(getattr(self, one.name)[chosen] for one in fields(self)))


def jackknife(without: np.ndarray) -> np.ndarray:
    """[row, batch] -> the standard error of each row."""
    folds = without.shape[1]
    centred = without - without.mean(1, keepdims=True)
    return np.asarray(np.sqrt((folds - 1) / folds * np.square(centred).sum(1)))


@dataclass
class SideColumns:
    """The rows of a block that belong to one run, as arrays.

    Attributes:
        table: with the columns `COLUMNS`, words as dictionaries that both sides of a block share.
    """

    table: pa.Table
    _kept: dict[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.table)

    def codes(self, name: str) -> np.ndarray:
        """Of words."""
        return self._array(name, lambda column: column.combine_chunks().indices.to_numpy(zero_copy_only=False))

    def words(self, name: str) -> list[str]:
        """What the codes stand for."""
        chunks = self.table.column(name).chunks
        return list(chunks[0].dictionary.to_pylist()) if chunks else []

    def code_of(self, name: str, word: str) -> int:
        """Of a word; −1 where it does not occur."""
        words = self.words(name)
        return words.index(word) if word in words else -1

    def having(self, name: str, wanted: Callable[[str], bool]) -> np.ndarray:
        """Where a column of words has one that is wanted."""
        found = np.array([wanted(word) for word in self.words(name)], dtype=bool)
        return found[self.codes(name)] if len(found) else np.zeros(len(self), bool)

    def numbers(self, name: str) -> np.ndarray:
        """NaN where there is none."""
        return self._array(name, lambda column: column.to_numpy().astype(np.float64, copy=False))

    def batch_counts(self) -> np.ndarray:
        """How many batches each row has."""
        return np.diff(self._offsets())

    def batches(self, rows: np.ndarray, count: int) -> np.ndarray:
        """[row, batch] of rows that have so many."""
        flat = self._array("batches", lambda column: column.combine_chunks().values.to_numpy(zero_copy_only=False))
        return np.asarray(flat[self._offsets()[rows][:, None] + np.arange(count)])

    def _offsets(self) -> np.ndarray:
        return self._array("offsets of batches", lambda _: self.table.column("batches").combine_chunks().offsets.to_numpy())

    def _array(self, name: str, made: Callable[[Any], np.ndarray]) -> np.ndarray:
        if name not in self._kept:
            self._kept[name] = made(self.table.column(name) if name in self.table.column_names else None)
        return self._kept[name]

    def exact(self) -> np.ndarray:
        """`contrasts.exact`."""
        no_bounds, tier = np.isnan(self.numbers("low")), self.codes("tier")
        plain = (tier == self.code_of("tier", "")) & np.isnan(self.numbers("replicates"))
        counted = no_bounds & ((self.codes("unit") == self.code_of("unit", "count")) | plain)
        return np.asarray((tier == self.code_of("tier", "exact")) | counted)

    def estimates(self, rows: np.ndarray, count: int) -> EstimateColumns:
        """Of rows that have so many batches."""
        value = self.numbers("value")[rows]
        if count > 1:
            return EstimateColumns.jackknifed(value, self.batches(rows, count), np.ones(len(rows), bool))
        half = (self.numbers("high")[rows] - self.numbers("low")[rows]) / 2
        batched = self.having("interval", ("jackknife", "profile").__contains__)[rows]
        quantile = [float(scipy.special.stdtrit(BATCHES - 1, (1 + LEVEL) / 2)), float(scipy.special.ndtri((1 + LEVEL) / 2))]
        exact = self.exact()[rows]
        error = np.where(exact, 0.0, half / np.where(batched, *quantile))
        degrees = np.where(batched & ~exact, BATCHES - 1.0, _NORMAL)
        return EstimateColumns(value, error, degrees, np.empty((len(rows), 0)), exact | np.isfinite(half))

    def rows(self, chosen: np.ndarray) -> list[Row]:
        """As the row-wise code has them, without what is not compared."""
        some = self.table.take(np.flatnonzero(chosen))
        columns = {name: some.column(name).to_pylist() for name in COLUMNS}
        columns["batches"] = [tuple(values or ()) for values in columns["batches"]]
        return [Row(**{**_REQUIRED, **dict(zip(columns, values, strict=True))}) for values in zip(*columns.values(), strict=True)]


def sides(base: pa.Table, head: pa.Table) -> tuple[SideColumns, SideColumns]:
    """Both runs of a block, with common words."""
    import pyarrow as pa

    both = pa.concat_tables([_worded(table.select(COLUMNS)) for table in (base, head)]).unify_dictionaries()
    return SideColumns(both.slice(0, len(base)).combine_chunks()), SideColumns(both.slice(len(base)).combine_chunks())


def _worded(table: pa.Table) -> pa.Table:
    """Words as dictionaries with one kind of codes, so that tables of any writer go together."""
    import pyarrow as pa

    from ..frames import COLUMNS as TYPES

    kinds = {"Float64": pa.float64(), "float64": pa.float64(), "bool": pa.bool_(), "object": pa.list_(pa.float64())}
    words = pa.dictionary(pa.int32(), pa.string())
    arrays = []
    for name in COLUMNS:
        column = table.column(name)
        if TYPES[name] in ("category", "string"):
            arrays.append((column if pa.types.is_dictionary(column.type) else column.dictionary_encode()).cast(words))
        else:
            arrays.append(column.cast(kinds.get(TYPES[name], pa.int64())))
    return pa.table(arrays, names=list(COLUMNS))


# Pairs.


def identities(sides: Sequence[SideColumns], names: Sequence[str]) -> list[np.ndarray]:
    """One number for all words of some columns, the same on all sides."""
    lengths = [len(side) for side in sides]
    found, size = np.zeros(sum(lengths), np.int64), 1
    for name in names:
        codes = np.concatenate([side.codes(name) for side in sides])
        count = max(int(codes.max(initial=0)) + 1, 1)
        if size * count >= 2**62:
            found = np.unique(found, return_inverse=True)[1].astype(np.int64)
            size = int(found.max(initial=0)) + 1
        found, size = found * count + codes, size * count
    return np.split(found, np.cumsum(lengths)[:-1])


def _together(sides: Sequence[SideColumns], names: Sequence[str], odd: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Where a row is odd, or one that has the same words in some columns, on either side."""
    if not any(where.any() for where in odd):
        return list(odd)
    groups = identities(sides, names)
    touched = np.unique(np.concatenate([some[where] for some, where in zip(groups, odd, strict=True)]))
    return [where | _members(some, touched) for some, where in zip(groups, odd, strict=True)]


def _members(values: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Where values are among some that are sorted."""
    if not len(among):
        return np.zeros(len(values), bool)
    return np.asarray(among[np.minimum(np.searchsorted(among, values), len(among) - 1)] == values)


@dataclass(frozen=True)
class Aligned:
    """The plain pairs of a block, and the rows that are not plain.

    Attributes:
        base, head: positions of the rows of each pair.
        rest: which rows of each side go one by one.
    """

    base: np.ndarray
    head: np.ndarray
    rest: tuple[np.ndarray, np.ndarray]


def aligned(base: SideColumns, head: SideColumns, asked: Callable[[str], bool] = lambda metric: True) -> Aligned:
    """Pairs of equal keys, in the order of the head, without those of cells and estimates that hold anything odd."""
    both = (base, head)
    failed = [side.having("status", FAILED.__contains__) for side in both]
    plain = [side.having("metric", lambda name: bool(name) and rule_of(name).role != "never" and asked(name)) for side in both]
    plain = [
        some & ~side.having("setting", lambda word: word.startswith(PART_OF_THE_SAME)) & ~side.having("status", "skipped".__eq__)
        for side, some in zip(both, plain, strict=True)
    ]
    learnt = [side.having("suite", "learning".__eq__) for side in both]
    odd = [one | two | ~_sound(side) for side, one, two in zip(both, failed, learnt, strict=True)]
    odd = [where & (some | bad) for where, some, bad in zip(odd, plain, failed, strict=True)]
    for names in (("suite", "problem", "stage", "estimator"), [name for name in Key._fields if name not in ("metric", "instance")]):
        odd = _together(both, names, odd)
    keys = identities(both, Key._fields)
    own = [np.flatnonzero(some & ~where) for some, where in zip(plain, odd, strict=True)]
    pairs, lonely = _paired([some[rows] for some, rows in zip(keys, own, strict=True)], own)
    one_sided = np.isnan(base.numbers("value")[pairs[0]]) != np.isnan(head.numbers("value")[pairs[1]])
    strange = [np.concatenate([alone, rows[one_sided]]) for alone, rows in zip(lonely, pairs, strict=True)]
    for where, rows in zip(odd, strange, strict=True):
        where[rows] = True
    # What is only on one side may be the other's twin in another dtype, and its gain may be that of a pair.
    if any(map(len, strange)):
        odd = _together(both, [name for name in Key._fields if name not in ("metric", "instance", "dtype", "device")], odd)
    kept = ~odd[0][pairs[0]] & ~odd[1][pairs[1]] & ~np.isnan(base.numbers("value")[pairs[0]])
    rest = tuple((where & some) | (where & bad) for where, some, bad in zip(odd, plain, failed, strict=True))
    return Aligned(pairs[0][kept], pairs[1][kept], (rest[0], rest[1]))


def _paired(keys: Sequence[np.ndarray], rows: Sequence[np.ndarray]) -> tuple[tuple[np.ndarray, np.ndarray], list[np.ndarray]]:
    """Rows of equal keys, in the order of the head, and those of either side whose key the other has not."""
    if np.array_equal(keys[0], keys[1]) and (np.diff(np.sort(keys[0])) > 0).all():
        return (rows[0], rows[1]), [np.empty(0, np.int64)] * 2
    found = [_last(*each) for each in zip(keys, rows, strict=True)]
    common, first, second = np.intersect1d(found[0][0], found[1][0], assume_unique=True, return_indices=True)
    pairs = found[0][1][first], found[1][1][second]
    order = np.argsort(pairs[1], kind="stable")
    alone = [one[1][~_members(one[0], common)] for one in found]
    return (pairs[0][order], pairs[1][order]), alone


def _sound(side: SideColumns) -> np.ndarray:
    """Rows of what went well, with finite batches or none."""
    counts = side.batch_counts()
    flat = side._array("batches", lambda column: column.combine_chunks().values.to_numpy(zero_copy_only=False))
    wrong = np.flatnonzero(~np.isfinite(flat))
    sound = side.having("status", "ok".__eq__) & (counts != 1)
    if len(wrong):
        sound[np.searchsorted(side._offsets(), wrong, side="right") - 1] = False
    return np.asarray(sound)


def _last(keys: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every key once, with the last row that has it."""
    found, places = np.unique(keys[::-1], return_index=True)
    return found, rows[len(rows) - 1 - places]


# Contrasts.

Statistic = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Contrasts:
    """`contrasts.Contrast` of many pairs."""

    estimate: np.ndarray
    error: np.ndarray
    degrees: np.ndarray

    @classmethod
    def of(cls, statistic: Statistic, base: EstimateColumns, head: EstimateColumns, paired: np.ndarray) -> Contrasts:
        """A statistic of two numbers with its error, batch by batch where they are ``paired``."""
        estimate, error, degrees = statistic(base.value, head.value), np.empty(len(paired)), np.empty(len(paired))
        if paired.any():
            error[paired] = jackknife(statistic(base.batches[paired], head.batches[paired]))
            degrees[paired] = base.batches.shape[1] - 1
        alone = ~paired
        if alone.any():
            base, head = base[alone], head[alone]
            sides = [
                _spread(statistic, base, head.value),
                _spread(lambda values, other: statistic(other, values), head, base.value),
            ]
            error[alone] = np.hypot(*sides)
            degrees[alone] = _welch(list(zip(sides, (base.degrees, head.degrees), strict=True)))
        return cls(estimate, error, degrees)

    def p_above(self, sign: float = 1.0) -> np.ndarray:
        """p-values of "it is not above 0", or below for the sign −1."""
        signed = sign * self.estimate
        sure = (self.error == 0) | ~np.isfinite(signed)
        with np.errstate(divide="ignore", invalid="ignore"):
            tested = scipy.special.stdtr(self.degrees, -signed / np.where(sure, 1.0, self.error))
        return np.where(sure, np.where(signed > 0, 0.0, 1.0), tested)

    def half_widths(self) -> np.ndarray:
        """Of the interval."""
        return np.where(self.error > 0, scipy.special.stdtrit(self.degrees, (1 + LEVEL) / 2) * self.error, 0.0)


def _spread(statistic: Callable[[np.ndarray, np.ndarray], np.ndarray], side: EstimateColumns, other: np.ndarray) -> np.ndarray:
    if side.batches.shape[1]:
        found = jackknife(statistic(side.batches, other[:, None]))
        return np.where(side.error == 0, 0.0, found)
    step = np.minimum(side.error, np.abs(side.value) / 2)
    step = np.where(step == 0, side.error, step)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.abs(statistic(side.value + step, other) - statistic(side.value - step, other)) / 2 * (side.error / step)
    return np.where(side.error == 0, 0.0, found)


def _welch(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    weights = sum(np.where(error > 0, error**4 / degrees, 0.0) for error, degrees in parts)
    squares = sum(error**2 for error, _ in parts)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.asarray(weights) > 0, np.asarray(squares) ** 2 / weights, _NORMAL)


def _log_ratio(base: np.ndarray, head: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(head / base))


def _difference(base: np.ndarray, head: np.ndarray) -> np.ndarray:
    return np.asarray(head - base)


def _beyond(sign: int, relative: float, absolute: float) -> Statistic:
    return lambda base, head: sign * (head - base) - relative * np.abs(base) - absolute


def _log_beyond(sign: int, relative: float) -> Statistic:
    return lambda base, head: sign * _log_ratio(base, head) - np.log1p(relative)


# Drafts.


@dataclass
class Drafted:
    """`verdicts.Draft` of many pairs: positions in `VERDICTS` and `METHODS`, whether the change is a ratio, the change, p-values."""

    verdict: np.ndarray
    ratio: np.ndarray
    method: np.ndarray
    change: np.ndarray
    worse: np.ndarray
    better: np.ndarray

    @classmethod
    def blank(cls, size: int) -> Drafted:
        """All open, and nothing compared."""
        return cls(
            np.full(size, VERDICTS.index("inconclusive"), np.int8),
            np.ones(size, bool),
            np.zeros(size, np.int8),
            np.full((size, 3), np.nan),
            np.full(size, np.nan),
            np.full(size, np.nan),
        )

    def put(self, where: np.ndarray, other: Drafted) -> None:
        """Set those at some places."""
        for one in fields(self):
            getattr(self, one.name)[where] = getattr(other, one.name)

    def __getitem__(self, chosen: np.ndarray) -> Drafted:
        return Drafted(*(getattr(self, one.name)[chosen] for one in fields(self)))


def close(first: np.ndarray, second: np.ndarray, absolute: float) -> np.ndarray:
    """`math.isclose` with `RTOL`."""
    with np.errstate(invalid="ignore"):
        near = np.abs(first - second) <= np.maximum(RTOL * np.maximum(np.abs(first), np.abs(second)), absolute)
    return np.asarray((first == second) | (near & np.isfinite(first) & np.isfinite(second)))


def between(both: Sequence[EstimateColumns], exact: np.ndarray, paired: np.ndarray, rule: Rule, alpha: float) -> Drafted:
    """`verdicts._between` of pairs with one rule; what is not known on a side stays open."""
    base, head = both
    found = Drafted.blank(len(exact))
    known = base.known & head.known
    sure = np.flatnonzero(known & exact)
    found.put(sure, _exactly(base.value[sure], head.value[sure], rule))
    rest = np.flatnonzero(known & ~exact)
    if len(rest):
        found.put(rest, _tested(base[rest], head[rest], paired[rest], rule, alpha))
    return found


def _is_ratio(base: np.ndarray, head: np.ndarray) -> np.ndarray:
    return np.asarray((base > 0) & (head > 0) & (np.maximum(base, head) < LARGEST_RATIO * np.minimum(base, head)))


def _exactly(base: np.ndarray, head: np.ndarray, rule: Rule) -> Drafted:
    found = Drafted.blank(len(base))
    found.ratio, found.method = _is_ratio(base, head), np.full(len(base), METHODS.index("exact"), np.int8)
    with np.errstate(divide="ignore", invalid="ignore"):
        found.change[:, 0] = np.where(found.ratio, head / base, head - base)
        inside = np.abs(head - base) <= rule.minimum_change * np.abs(base) + rule.floor
    codes = {name: VERDICTS.index(name) for name in VERDICTS}
    moved = np.where((head > base) == (rule.role == "lower"), codes["regressed"], codes["improved"])
    moved = np.full(len(base), codes["changed"]) if rule.role == "stable" else moved
    moved = np.where(inside, codes["equivalent"], moved) if rule.needs else moved
    found.verdict = np.where(close(base, head, rule.tolerance), codes["identical"], moved).astype(np.int8)
    return found


def _tested(base: EstimateColumns, head: EstimateColumns, paired: np.ndarray, rule: Rule, alpha: float) -> Drafted:
    found = Drafted.blank(len(paired))
    numbers = np.concatenate([base.value[:, None], base.batches, head.value[:, None], head.batches], axis=1)
    ratio = (numbers.min(1) > SMALLEST_SHARE * numbers.max(1)) if rule.scale == "ratio" else np.zeros(len(paired), bool)
    found.ratio = ratio & _is_ratio(base.value, head.value)
    found.method = np.where(paired, METHODS.index("paired"), METHODS.index("independent")).astype(np.int8)
    same = close(base.value, head.value, _CLOSE) & close(base.error, head.error, _CLOSE)
    if base.batches.shape == head.batches.shape:
        same &= close(base.batches, head.batches, _CLOSE).all(1)
    else:
        same[:] = False
    found.verdict[same] = VERDICTS.index("identical")
    found.change[same, 0] = np.where(found.ratio[same], 1.0, 0.0)
    for logarithmic in (False, True):
        some = np.flatnonzero(~same & (ratio == logarithmic))
        if len(some):
            _test(found, some, _Tests(base[some], head[some], paired[some], rule, logarithmic), alpha)
    return found


@dataclass(frozen=True)
class _Tests:
    """`verdicts._Sides` of many pairs, which are all compared on one scale."""

    base: EstimateColumns
    head: EstimateColumns
    paired: np.ndarray
    rule: Rule
    logarithmic: bool

    def of(self, statistic: Statistic) -> Contrasts:
        return Contrasts.of(statistic, self.base, self.head, self.paired)

    def beyond(self, sign: int, relative: float, absolute: float) -> Contrasts:
        chosen = _log_beyond(sign, relative) if self.logarithmic and absolute == 0 else _beyond(sign, relative, absolute)
        return self.of(chosen)

    def p_values(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """That it is worse, better, and not worse by more than the margin of equivalence."""
        rule = self.rule
        up, down = (self.beyond(sign, rule.minimum_change, rule.floor).p_above() for sign in (1, -1))
        if rule.role == "stable":
            harmless = np.maximum(self._harmless(1), self._harmless(-1))
            return np.minimum(1.0, 2 * np.minimum(up, down)), np.full(len(up), np.nan), harmless
        return (up, down, self._harmless(1)) if rule.role == "lower" else (down, up, self._harmless(-1))

    def _harmless(self, sign: int) -> np.ndarray:
        return self.beyond(sign, self.rule.equivalence, self.rule.ceiling).p_above(-1.0)


def _test(found: Drafted, some: np.ndarray, tests: _Tests, alpha: float) -> None:
    worse, better, harmless = tests.p_values()
    found.verdict[some] = np.where(harmless < alpha, VERDICTS.index("equivalent"), VERDICTS.index("inconclusive"))
    found.worse[some], found.better[some] = worse, better
    told = found.ratio[some]
    ways = [(~told, tests.of(_difference))] + ([(told, tests.of(_log_ratio))] if tests.logarithmic and told.any() else [])
    for where, contrast in ways:
        half = contrast.half_widths()
        ends = np.stack([contrast.estimate, contrast.estimate - half, contrast.estimate + half], axis=1)[where]
        if where is told:
            with np.errstate(over="ignore"):
                ends = np.where(ends < 700, np.exp(ends), np.inf)
        found.change[some[where]] = ends


# A block.


@dataclass
class Block:
    """The comparisons of the plain pairs of a block, as arrays.

    Attributes:
        words: of the columns of the key. ``codes``: of every pair, by column.
        values: of both sides. ``rules``: the rule of each, as a position in a list.
        drafted: before the correction for many tests. ``reasons``: by number, 0 is none. ``reason``: the number of each.
        again: those that are judged again where the gain is found to have changed, at ``places``; with their reasons.
        group: a number for what shares all but the instance. ``estimates``: for what shares all but the metric.
        batched: whether a side has batches.
    """

    words: dict[str, list[str]]
    codes: dict[str, np.ndarray]
    values: np.ndarray
    rules: list[Rule]
    rule: np.ndarray
    drafted: Drafted
    reasons: list[str]
    reason: np.ndarray
    places: np.ndarray
    again: Drafted
    again_reason: np.ndarray
    estimates: np.ndarray
    batched: np.ndarray
    p_adjusted: np.ndarray = field(default_factory=lambda: np.empty(0))

    def __len__(self) -> int:
        return len(self.rule)


def _rules(sides: tuple[SideColumns, SideColumns], pairs: Aligned, settings: Settings) -> tuple[list[Rule], np.ndarray]:
    """The rules that hold anywhere, and which one holds of each pair."""
    head = sides[1]
    if not settings.overrides:
        blank = Key(*[""] * len(Key._fields))
        named = [settings.rule(blank._replace(metric=word)) if word else rule_of(word) for word in head.words("metric")]
        several = list(dict.fromkeys(named))
        return several, np.array([several.index(rule) for rule in named] or [0], np.int32)[head.codes("metric")[pairs.head]]
    groups = identities([head], PATTERNS)[0][pairs.head]
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    keys = [_key(head, int(pairs.head[place])) for place in first]
    found = [settings.rule(key) for key in keys]
    unique = list(dict.fromkeys(found))
    return unique, np.array([unique.index(rule) for rule in found], np.int32)[inverse] if len(found) else np.empty(0, np.int32)


def _key(side: SideColumns, row: int) -> Key:
    return Key(*(side.words(name)[side.codes(name)[row]] for name in Key._fields))


class _Reasons:
    """Sentences, each with a number; the first is that there is nothing to say."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {"": 0}

    def number(self, text: str) -> int:
        return self.known.setdefault(text, len(self.known))


def _obstacles(
    sides: tuple[SideColumns, SideColumns],
    pairs: Aligned,
    ruling: tuple[Sequence[Rule], np.ndarray],
    machines: tuple[Machine, Machine],
    reasons: _Reasons,
) -> np.ndarray:
    """`matching.obstacle_between` of all pairs, as numbers of reasons."""
    (base, head), (rules, rule) = sides, ruling
    found = np.zeros(len(pairs.head), np.int32)

    def say(where: np.ndarray, first: np.ndarray, second: np.ndarray, text: str) -> None:
        where = where & (found == 0)
        for one, two in np.unique(np.stack([first[where], second[where]], 1), axis=0) if where.any() else ():
            found[where & (first == one) & (second == two)] = reasons.number(text.format(one, two))

    for name in _DECLARED:
        if name not in Key._fields:
            first, second = base.numbers(name)[pairs.base], head.numbers(name)[pairs.head]
            say(first != second, first, second, f"{name} is {{:.0f}} in the base and {{:.0f}} in the head")
    seeds = base.numbers("seed")[pairs.base], head.numbers("seed")[pairs.head]
    others = np.zeros(len(found), bool)
    for name in _FACTS:
        first, second = base.numbers(name)[pairs.base], head.numbers(name)[pairs.head]
        with np.errstate(invalid="ignore"):
            near = np.abs(first - second) <= np.maximum(1e-6 * np.maximum(np.abs(first), np.abs(second)), 1e-12)
        others |= ~(near | (first == second) | (np.isnan(first) & np.isnan(second)))
    say(
        (seeds[0] != seeds[1]) & others,
        *seeds,
        "other scores: the seed is {:.0f} in the base and {:.0f} in the head",
    )
    for number, one in enumerate(rules):
        for name in {"": (), "torch": ("torch",), "machine": _MACHINE}[one.needs]:
            known = [_fact(machine, name) for machine in machines]
            if None in known or known[0] != known[1]:
                text = f"another machine: {name} is {known[0]} in the base and {known[1]} in the head"
                found[(rule == number) & (found == 0)] = reasons.number(text)
                break
    return found


def block(
    both: tuple[SideColumns, SideColumns],
    machines: tuple[Machine, Machine],
    settings: Settings,
    wanted: Callable[[Rule], bool] = lambda rule: True,
    asked: Callable[[str], bool] = lambda metric: True,
) -> tuple[Block, list[Draft]]:
    """What every pair that is wanted says: in arrays what is plain, row by row the rest; of ``asked`` metrics."""
    pairs, reasons = aligned(*both, asked), _Reasons()
    rest = [side.rows(rows) for side, rows in zip(both, pairs.rest, strict=True)]
    others = drafts(match(*pooled(*rest), machines), settings, lambda pair, rule: wanted(rule) or not pair.key.metric) if any(rest) else []
    rules, rule = _rules(both, pairs, settings)
    obstacle = _obstacles(both, pairs, (rules, rule), machines, reasons)
    work = _Work(both, pairs, rules, rule, obstacle, settings, reasons)
    return work.done(wanted), others


@dataclass
class _Work:
    """One block on its way."""

    sides: tuple[SideColumns, SideColumns]
    pairs: Aligned
    rules: list[Rule]
    rule: np.ndarray
    obstacle: np.ndarray
    settings: Settings
    reasons: _Reasons

    def done(self, wanted: Callable[[Rule], bool]) -> Block:
        size = len(self.rule)
        self.exact = [side.exact()[rows] for side, rows in zip(self.sides, self._rows(), strict=True)]
        self.counts = [side.batch_counts()[rows] for side, rows in zip(self.sides, self._rows(), strict=True)]
        self.paired = self._paired()
        self.estimates = identities(self.sides, [name for name in Key._fields if name != "metric"])[1][self.pairs.head]
        self.found, self.reason = Drafted.blank(size), self.obstacle.copy()
        self.found.verdict[self.obstacle > 0] = VERDICTS.index("incomparable")
        kept = np.array([wanted(rule) for rule in self.rules], bool)[self.rule] if size else np.zeros(0, bool)
        for number, rule in enumerate(self.rules):
            if rule.scale == "exact":
                kept &= (self.rule != number) | (self.obstacle > 0) | (self.exact[0] & self.exact[1])
        open_ = kept & (self.obstacle == 0)
        for some, rule in self._batches(np.flatnonzero(open_)):
            estimates = [side.estimates(rows[some], self.counts[place][some[0]]) for place, side, rows in self._enumerated()]
            found = between(estimates, self.exact[0][some] & self.exact[1][some], self.paired[some], rule, self.settings.alpha)
            self.found.put(some, found)
            self.reason[some[~(estimates[0].known & estimates[1].known)]] = self.reasons.number(UNKNOWN)
        places, again, again_reason = self._at_gain(open_)
        return self._block(kept, places, again, again_reason)

    def _rows(self) -> tuple[np.ndarray, np.ndarray]:
        return self.pairs.base, self.pairs.head

    def _enumerated(self) -> Iterator[tuple[int, SideColumns, np.ndarray]]:
        for place, (side, rows) in enumerate(zip(self.sides, self._rows(), strict=True)):
            yield place, side, rows

    def _paired(self) -> np.ndarray:
        """`contrasts.common_random_numbers`."""
        base, head = self.sides
        same = (self.counts[0] == self.counts[1]) & (self.counts[0] > 1)
        same &= base.numbers("seed")[self.pairs.base] == head.numbers("seed")[self.pairs.head]
        same &= base.codes("tier")[self.pairs.base] == head.codes("tier")[self.pairs.head]
        replicates = base.numbers("replicates")[self.pairs.base], head.numbers("replicates")[self.pairs.head]
        return np.asarray(same & ((replicates[0] == replicates[1]) | (np.isnan(replicates[0]) & np.isnan(replicates[1]))))

    def _batches(self, some: np.ndarray) -> Iterator[tuple[np.ndarray, Rule]]:
        """Pairs with one rule, and as many batches on each side."""
        if not len(some):
            return
        most = 1 + max(int(counts[some].max()) for counts in self.counts)
        kinds = (self.rule[some].astype(np.int64) * most + self.counts[0][some]) * most + self.counts[1][some]
        for kind in np.flatnonzero(np.bincount(kinds)):
            yield some[kinds == kind], self.rules[kind // most**2]

    def _at_gain(self, open_: np.ndarray) -> tuple[np.ndarray, Drafted, np.ndarray]:
        """`verdicts._told_by_gain`: what is judged at the same gain in place of it, and what may be, later."""
        metric = self.sides[1].codes("metric")[self.pairs.head]
        words = self.sides[1].words("metric")
        gains = np.flatnonzero((metric == (words.index("gain") if "gain" in words else -1)) & (self.obstacle == 0))
        stable = np.array([rule.role == "stable" for rule in self.rules], bool)
        shrinking = np.flatnonzero(open_ & np.isin(metric, [words.index(name) for name in AT_GAIN if name in words]))
        shrinking = shrinking[~stable[self.rule[shrinking]]]
        order = gains[np.argsort(self.estimates[gains], kind="stable")]
        place = np.searchsorted(self.estimates[order], self.estimates[shrinking])
        has = place < len(order)
        has[has] = self.estimates[order[place[has]]] == self.estimates[shrinking[has]]
        shrinking, gain = shrinking[has], order[place[has]]
        same, reason = Drafted.blank(len(shrinking)), np.zeros(len(shrinking), np.int32)
        sure = [self._sure(place, gain) for place in (0, 1)]
        values = [side.numbers("value")[rows[gain]] for side, rows in zip(self.sides, self._rows(), strict=True)]
        told = sure[0] | sure[1]
        self._judge(np.flatnonzero(sure[0] & sure[1]), shrinking, gain, same, reason)
        tolerance = np.array([rule.tolerance for rule in self.rules])[self.rule[gain]] if len(gain) else np.zeros(0)
        level = np.zeros(len(gain), bool)
        for one in np.unique(tolerance):
            where = tolerance == one
            level[where] = close(values[0][where], values[1][where], float(one))
        exact = self.exact[0][gain] & self.exact[1][gain]
        replaced = np.flatnonzero(told & exact & ~level)
        later = np.flatnonzero(told & ~exact)
        for some in (replaced, later):
            self._name(some, values, sure[0] & sure[1], reason)
        self.found.put(shrinking[replaced], same[replaced])
        self.reason[shrinking[replaced]] = reason[replaced]
        joint = np.maximum(self.found.better[shrinking[later]], same.better[later])  # NaN where either has none
        self.found.better[shrinking[later]] = joint
        return shrinking[later], same[later], reason[later]

    def _name(self, some: np.ndarray, values: list[np.ndarray], sure: np.ndarray, reason: np.ndarray) -> None:
        """Reasons of those whose gain differs at all; else nothing is said."""
        for place in some[values[0][some] != values[1][some]]:
            was, now = f"{values[0][place]:.4g}", f"{values[1][place]:.4g}"
            if sure[place]:
                text = f"at the same gain, which was {was} and is {now}"
                text = f"{text}; {UNKNOWN}" if reason[place] else text
            else:
                text = f"the gain was {was} and is {now}: errors cannot be compared at the same gain"
            reason[place] = self.reasons.number(text)

    def _sure(self, place: int, gain: np.ndarray) -> np.ndarray:
        """`gains.known_gain`."""
        side, rows = self.sides[place], self._rows()[place]
        found = np.zeros(len(gain), bool)
        for count in np.flatnonzero(np.bincount(self.counts[place][gain])):
            where = self.counts[place][gain] == count
            sizes = side.estimates(rows[gain[where]], int(count))
            found[where] = sizes.known & (np.abs(sizes.value) > np.maximum(LEAST, SURE * sizes.error))
        return found

    def _judge(self, some: np.ndarray, shrinking: np.ndarray, gain: np.ndarray, same: Drafted, reason: np.ndarray) -> None:
        """Errors at the gain 1 against each other."""
        if not len(some):
            return
        metric = self.sides[1].codes("metric")[self.pairs.head][shrinking[some]]
        counts = [self.counts[place][rows[some]] for place in (0, 1) for rows in (shrinking, gain)]
        columns = [self.rule[shrinking[some]], metric, *counts]
        together = np.zeros(len(some), np.int64)
        for column in columns:
            together = together * (int(column.max()) + 1) + column
        for number in sorted(set(together.tolist())):
            where = together == number
            chosen, kind = some[where], [int(column[where][0]) for column in columns]
            function = AT_GAIN[self.sides[1].words("metric")[kind[1]]]
            estimates = [
                _at_gain(function, side.estimates(rows[shrinking[chosen]], int(kind[2 + 2 * place])),
                         side.estimates(rows[gain[chosen]], int(kind[3 + 2 * place])))
                for place, side, rows in self._enumerated()
            ]  # fmt: skip
            exact = self.exact[0][shrinking[chosen]] & self.exact[1][shrinking[chosen]]
            found = between(estimates, exact, self.paired[shrinking[chosen]], self.rules[kind[0]], self.settings.alpha)
            same.put(chosen, found)
            reason[chosen[~(estimates[0].known & estimates[1].known)]] = self.reasons.number(UNKNOWN)

    def _block(self, kept: np.ndarray, places: np.ndarray, again: Drafted, again_reason: np.ndarray) -> Block:
        head = self.sides[1]
        chosen = np.flatnonzero(kept)
        position = np.full(len(kept), -1)
        position[chosen] = np.arange(len(chosen))
        there = kept[places]
        values = np.stack([side.numbers("value")[rows[chosen]] for side, rows in zip(self.sides, self._rows(), strict=True)], 1)
        smallest = {name: np.min_scalar_type(max(len(head.words(name)), 1)) for name in Key._fields}
        return Block(
            words={name: head.words(name) for name in Key._fields},
            codes={name: head.codes(name)[self.pairs.head[chosen]].astype(smallest[name]) for name in Key._fields},
            values=values,
            rules=self.rules,
            rule=self.rule[chosen].astype(np.int32),
            drafted=self.found[chosen],
            reasons=list(self.reasons.known),
            reason=self.reason[chosen],
            places=position[places[there]],
            again=again[there],
            again_reason=again_reason[there],
            estimates=self.estimates[chosen],
            batched=(self.counts[0] > 1)[chosen] | (self.counts[1] > 1)[chosen],
        )


def _at_gain(function: Callable[[Any, Any], Any], error: EstimateColumns, gain: EstimateColumns) -> EstimateColumns:
    """`gains.at_gain`."""
    known = error.known & gain.known
    with np.errstate(divide="ignore", invalid="ignore"):
        value = function(error.value, gain.value)
        if error.batches.shape[1] != gain.batches.shape[1]:
            return EstimateColumns(value, np.zeros(len(value)), np.full(len(value), _NORMAL), error.batches, np.zeros(len(value), bool))
        if error.batches.shape[1]:
            return EstimateColumns.jackknifed(value, function(error.batches, gain.batches), known)
    exact = (error.error == 0) & (gain.error == 0)
    return EstimateColumns(value, np.zeros(len(value)), np.full(len(value), _NORMAL), error.batches, known & exact)
