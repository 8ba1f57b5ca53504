"""Comparison of runs too large to be held row by row: block by block in arrays, with one correction over all tests.

What it finds is a sequence of `Comparison`, each made when it is asked for; counts and groups are made without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ..base import Row
from ..metrics import Rule, rule_of
from ..processors import side_by_side
from ..statistics.interval import Interval
from .claims import BROKEN, Claim
from .columns import METHODS, VERDICTS, Block, Drafted, SideColumns, block, identities, sides
from .groups import Group, Tally, group, grouped, tally_of
from .matching import Key, Machine
from .settings import Settings
from .verdicts import NO_SAVING, Comparison, Draft, Verdict, is_cost, is_wrong, settled

if TYPE_CHECKING:
    import pyarrow as pa

Tables = tuple["pa.Table", "pa.Table"]
"""The rows of both runs for some problems."""

Blocks = Sequence[Callable[[], Tables]]
"""The rows of both runs for some problems at a time, no problem in two of them, each read when it is called; another process may."""

MOST_JOBS = 2
"""Processes at most: each holds a million rows, and reading is half of what they do."""

KILLED = "a process that compared two runs was killed, as where memory runs out; each takes some 1 GB"

_ROW: dict[str, Any] = dict.fromkeys(("cell", "source", "oracle", "family"), "")


class LargeComparison(Sequence[Comparison]):
    """What two large runs say, in the order of their blocks."""

    def __init__(self, blocks: Sequence[Block], rest: Sequence[Comparison]) -> None:
        self.blocks, self.rest = blocks, rest

    def __len__(self) -> int:
        return sum(map(len, self.blocks)) + len(self.rest)

    @overload
    def __getitem__(self, place: int) -> Comparison: ...
    @overload
    def __getitem__(self, place: slice) -> list[Comparison]: ...
    def __getitem__(self, place: int | slice) -> Comparison | list[Comparison]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        place = range(len(self))[place]
        for one in self.blocks:
            if place < len(one):
                return _comparison(one, place)
            place -= len(one)
        return self.rest[place]

    def __iter__(self) -> Iterator[Comparison]:
        for one in self.blocks:
            yield from (_comparison(one, place) for place in range(len(one)))
        yield from self.rest

    def counts(self) -> Counter[Verdict]:
        """How many comparisons have each verdict."""
        found: Counter[Verdict] = Counter(item.verdict for item in self.rest)
        for one in self.blocks:
            for code, number in enumerate(np.bincount(one.drafted.verdict, minlength=len(VERDICTS)).tolist()):
                found[VERDICTS[code]] += number
        return +found

    def tallies(self) -> Counter[Tally]:
        """`groups.tallies_of`."""
        found = Counter(map(tally_of, self.rest))
        for one in self.blocks:
            verdict = one.drafted.verdict.astype(np.int64)
            reason = np.where(verdict == VERDICTS.index("incomparable"), one.reason, -1)
            names = ("suite", "problem", "stage", "estimator", "metric")
            kinds, numbers = np.unique(np.stack([*(one.codes[name] for name in names), verdict, reason], 1), axis=0, return_counts=True)
            for (*codes, kind, why), number in zip(kinds.tolist(), numbers.tolist(), strict=True):
                where = {name: one.words[name][code] for name, code in zip(names, codes, strict=True)}
                found[Tally(**where, verdict=VERDICTS[kind], reason=one.reasons[why] if why >= 0 else "")] += number
        return found

    def has_common_numbers(self) -> bool:
        """Whether anything was compared with anything."""
        incomparable = VERDICTS.index("incomparable")
        return any((one.drafted.verdict != incomparable).any() for one in self.blocks) or any(
            item.base is not None and item.head is not None and item.verdict != "incomparable" for item in self.rest
        )

    def groups(self, judged: Callable[[Verdict], bool], most: int | None = None) -> tuple[list[Group], int]:
        """The gravest groups with a comparison that is judged, the greatest effects first; and how many there are."""
        wanted = np.array([judged(verdict) for verdict in VERDICTS])
        found = [_groups(one, wanted) for one in self.blocks]
        others = grouped(self.rest, judged)
        total = sum(len(some.first) for some in found) + len(others)
        gravity, effect = (np.concatenate([getattr(some, name) for some in found] or [np.empty(0)]) for name in ("gravity", "effect"))
        owner = np.concatenate([np.full(len(some.first), number) for number, some in enumerate(found)] or [np.empty(0)]).astype(int)
        place = np.concatenate([np.arange(len(some.first)) for some in found] or [np.empty(0, np.int64)]).astype(int)
        made = []
        for number in np.lexsort((-effect, gravity))[:most]:
            some, one = found[owner[number]], self.blocks[owner[number]]
            items = [_comparison(one, int(row)) for row in some.rows(int(place[number]))]
            made.append(group(items, [item for item in items if judged(item.verdict)]))
        return [*others, *made], total

    def selected(self, wanted: Callable[[Key, Verdict], bool]) -> LargeComparison:
        """Those that are asked for, by estimator, metric and verdict."""
        chosen = []
        for one in self.blocks:
            names = [one.codes[name].astype(np.int64) for name in ("estimator", "metric")] + [one.drafted.verdict.astype(np.int64)]
            kinds, inverse = np.unique(np.stack(names, 1), axis=0, return_inverse=True)
            blank = Key(*[""] * len(Key._fields))
            keys = [
                (blank._replace(estimator=one.words["estimator"][kind[0]], metric=one.words["metric"][kind[1]]), VERDICTS[kind[2]])
                for kind in kinds
            ]
            kept = np.array([wanted(*key) for key in keys], bool)[inverse.ravel()] if len(keys) else np.zeros(0, bool)
            chosen.append(one if kept.all() else _some(one, kept))
        return LargeComparison(chosen, [item for item in self.rest if wanted(item.key, item.verdict)])


def verdicts_of(items: Iterable[Comparison]) -> Counter[Verdict]:
    """How many comparisons have each verdict."""
    return items.counts() if isinstance(items, LargeComparison) else Counter(item.verdict for item in items)


def _some(one: Block, kept: np.ndarray) -> Block:
    arrays = {name: getattr(one, name)[kept] for name in ("values", "rule", "drafted", "reason", "batched", "p_adjusted")}
    return replace(one, codes={name: codes[kept] for name, codes in one.codes.items()}, **arrays)


def _comparison(one: Block, place: int) -> Comparison:
    """A comparison with what is said of it, and rows of nothing but their key and number."""
    found = one.drafted
    key = Key(*(one.words[name][one.codes[name][place]] for name in Key._fields))
    value, low, high = (None if np.isnan(number) else float(number) for number in found.change[place])
    method = "" if low is None else "jackknife" if one.batched[place] else "t"
    base, head = (Row(**_ROW, **key._asdict(), value=float(number)) for number in one.values[place])
    tested = not np.isnan(found.worse[place])
    return Comparison(
        key,
        base,
        head,
        one.rules[one.rule[place]],
        VERDICTS[found.verdict[place]],
        one.reasons[one.reason[place]],
        Interval(value, low, high, method),
        "ratio" if found.ratio[place] else "difference",
        METHODS[found.method[place]],  # type: ignore[arg-type]
        float(found.worse[place]) if tested else None,
        float(one.p_adjusted[place]) if tested else None,
    )


@dataclass(frozen=True)
class _Groups:
    """Groups of a block: the first of their rows in ``order``, how many, how grave, how great."""

    order: np.ndarray
    first: np.ndarray
    size: np.ndarray
    gravity: np.ndarray
    effect: np.ndarray

    def rows(self, number: int) -> np.ndarray:
        return np.sort(self.order[self.first[number] : self.first[number] + self.size[number]])


def _groups(one: Block, wanted: np.ndarray) -> _Groups:
    """What is judged of a block, by all but the instance, in no order."""
    group_of = np.zeros(len(one), np.int64)
    for name in Key._fields:
        if name != "instance":
            group_of = group_of * max(len(one.words[name]), 1) + one.codes[name]
            if len(group_of) and group_of.max() >= 2**40:
                group_of = np.unique(group_of, return_inverse=True)[1].astype(np.int64)
    _, inverse, sizes = np.unique(group_of, return_inverse=True, return_counts=True)
    count = len(sizes)
    verdict = one.drafted.verdict
    judged = wanted[verdict]
    gravity = np.full(count, len(VERDICTS))
    np.minimum.at(gravity, inverse[judged], verdict[judged])
    change = one.drafted.change[:, 0]
    known = ~np.isnan(change)
    mixed = np.bincount(inverse[known & ~one.drafted.ratio], minlength=count) > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        on_logarithms = np.where(one.drafted.ratio, np.log(change), 0.0)
        on_differences = np.where(one.drafted.ratio, one.values[:, 0] * (change - 1), change)
    additive = np.where(mixed[inverse], on_differences, on_logarithms)[known]
    number = np.bincount(inverse[known], minlength=count)
    total = np.bincount(inverse[known], additive, minlength=count)
    with np.errstate(divide="ignore", invalid="ignore"):
        effect = np.where(number > 0, np.abs(total / number), np.inf)
    there = np.flatnonzero(gravity < len(VERDICTS))
    order = np.argsort(inverse, kind="stable")
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return _Groups(order, first[there], sizes[there], gravity[there], effect[there])


# Two runs.


def compare_large(
    blocks: Blocks,
    machines: tuple[Machine, Machine] = ({}, {}),
    settings: Settings | None = None,
    *,
    asked: Callable[[str], bool] = bool,
) -> LargeComparison:
    """`verdicts.compare` of two large runs.

    Args:
        blocks: their rows, with the columns of `columns.COLUMNS`.
        machines: their environments.
        settings: margins and level.
        asked: the metrics that are compared; another process may ask.
    """
    settings = settings or Settings()
    return _Large(settings).of(blocks, _Taking(machines, settings, asked)).settled()


def gate_large(
    blocks: Blocks, machines: tuple[Machine, Machine] = ({}, {}), settings: Settings | None = None
) -> tuple[LargeComparison, list[Claim], Counter[str]]:
    """The result of `gating.gate` for two large runs: comparisons, claims of estimators that break one, and counts of claims."""
    settings = settings or Settings()
    work = _Large(settings).of(blocks, _Taking(machines, settings, gating=True))
    found = work.settled()
    checked = Counter[str]()
    for one in work.claims:
        checked.update(one.words["estimator"][code] for code in one.codes["estimator"].tolist())
    return found, work.broken(), checked


@dataclass
class _Claims:
    """Claims of a block, as arrays: key, relative bias, effect, whether it is exact, whether exactly broken, p-value."""

    words: dict[str, list[str]]
    codes: dict[str, np.ndarray]
    value: np.ndarray
    effect: np.ndarray
    exact: np.ndarray
    broken: np.ndarray
    p_value: np.ndarray
    p_adjusted: np.ndarray

    def __len__(self) -> int:
        return len(self.value)


def _claims(side: SideColumns, settings: Settings) -> _Claims:
    """`claims.claims` of the head of a block."""
    claiming = side.having("metric", "relative_bias".__eq__) & side.having("setting", "".__eq__) & side.having("status", "ok".__eq__)
    claiming &= side.having("objective", "expected".__eq__) & side.having("reference", "expected".__eq__)
    nonfinite = side.having("verdict", BROKEN.__eq__)
    rows = np.flatnonzero((claiming & (side.numbers("unbiased") > 0) & ~np.isnan(side.numbers("value"))) | nonfinite)
    place = identities([side], [name for name in Key._fields if name != "metric"])[0]
    gains = np.flatnonzero(side.having("metric", "gain".__eq__) & ~np.isnan(side.numbers("value")))
    order = gains[np.argsort(place[gains], kind="stable")]
    at = np.searchsorted(place[order], place[rows], side="right") - 1
    has = at >= 0
    has[has] = place[order[at[has]]] == place[rows[has]]
    value = side.numbers("value")[rows]
    effect = value.copy()
    effect[has] = np.maximum(value[has], np.abs(side.numbers("value")[order[at[has]]] - 1))
    effect[nonfinite[rows]] = np.inf
    exact = (side.having("tier", "exact".__eq__) | nonfinite)[rows]
    least = np.where(side.having("dtype", "float64".__eq__)[rows], 0.0, settings.minimum_bias)
    broken = exact & side.having("verdict", ("biased", BROKEN).__contains__)[rows] & (effect > least)
    p_value = np.where(exact, np.nan, side.numbers("p_value")[rows])
    codes = {name: side.codes(name)[rows] for name in Key._fields}
    return _Claims({name: side.words(name) for name in Key._fields}, codes, value, effect, exact, broken, p_value, p_value)


@dataclass(frozen=True)
class _Taken:
    """What a block says before the correction.

    Attributes:
        block: its plain pairs. ``rest``: what is odd. ``claims, learnt``: of the head, where a gate asks.
        met: by override, the first number that it matched, if any.
    """

    block: Block
    rest: list[Draft]
    claims: list[_Claims]
    learnt: list[Comparison]
    met: list[list[Key]]


@dataclass(frozen=True)
class _Taking:
    """Takes a block in, in whatever process.

    Attributes:
        machines, settings: as of `compare_large`. ``asked``: the metrics that are compared.
        gating: whether only what is gated is compared, and the claims of the head are looked at.
    """

    machines: tuple[Machine, Machine]
    settings: Settings
    asked: Callable[[str], bool] = bool
    gating: bool = False

    def __call__(self, read: Callable[[], Tables]) -> _Taken:
        from .learning import alike

        both = sides(*read())
        one, others = block(both, self.machines, self.settings, self._wanted, self.asked)
        claims = [_claims(both[1], self.settings)] if self.gating else []
        learnt = alike(both[1].rows(both[1].having("suite", "learning".__eq__))) if self.gating else []
        return _Taken(one, others, claims, learnt, [override.met for override in self.settings.overrides])

    def _wanted(self, rule: Rule) -> bool:
        return rule.gated or not self.gating


@dataclass
class _Large:
    """Two runs on their way through."""

    settings: Settings
    blocks: list[Block] = field(default_factory=list)
    rest: list[Draft] = field(default_factory=list)
    claims: list[_Claims] = field(default_factory=list)
    learnt: list[Comparison] = field(default_factory=list)

    def of(self, blocks: Blocks, taking: _Taking) -> _Large:
        """Take all blocks in."""
        for part in side_by_side(taking, blocks, MOST_JOBS, KILLED):
            self.blocks.append(part.block)
            self.rest += part.rest
            self.claims += part.claims
            self.learnt += part.learnt
            for override, met in zip(self.settings.overrides, part.met, strict=True):
                override.met.extend(met[: not override.met])
        return self

    def settled(self) -> LargeComparison:
        """`verdicts.settle`."""
        first, rest = self._together()
        changed = [np.unique(one.estimates[_gain_changed(one, verdict)]) for one, (verdict, _) in zip(self.blocks, first, strict=True)]
        again = []
        for one, places in zip(self.blocks, changed, strict=True):
            chosen = np.flatnonzero(np.isin(one.estimates[one.places], places))
            at = one.places[chosen]
            one.drafted.put(at, one.again[chosen])
            one.reason[at] = one.again_reason[chosen]
            again.append(at)
        found = {item.key._replace(metric="") for item in rest if item.key.metric == "gain" and item.verdict == "changed"}
        mended = [item.at_gain if item.at_gain and item.comparison.key._replace(metric="") in found else None for item in self.rest]
        if any(map(len, again)) or any(mended):
            self.rest = [item if other is None else other for item, other in zip(self.rest, mended, strict=True)]
            second, later = self._together()
            for (verdict, adjusted), (now, told), at in zip(first, second, again, strict=True):
                verdict[at], adjusted[at] = now[at], told[at]
            rest = [item if other is None else new for item, other, new in zip(rest, mended, later, strict=True)]
        for one, (verdict, adjusted) in zip(self.blocks, first, strict=True):
            one.drafted.verdict, one.p_adjusted = verdict, adjusted
            one.again, one.estimates = Drafted.blank(0), np.empty(0)
        whole = LargeComparison(self.blocks, [*rest, *self.learnt])
        _without_savings(whole)
        return whole

    def _together(self) -> tuple[list[tuple[np.ndarray, np.ndarray]], list[Comparison]]:
        """Holm's correction over what can fail, claims too, and over what can improve; claims are decided the first time."""
        lists = [[getattr(one.drafted, name) for one in self.blocks] for name in ("worse", "better")]
        own = [np.array([_nan(getattr(item, name)) for item in self.rest]) for name in ("worse", "better")]
        worse = _split_holm([*lists[0], own[0], *(one.p_value for one in self.claims)])
        better = _split_holm([*lists[1], own[1]])
        for one, adjusted in zip(self.claims, worse[len(self.blocks) + 1 :], strict=True):
            one.p_adjusted = adjusted if one.p_adjusted is one.p_value else one.p_adjusted
        first = [
            (_settled(one, bad, good, self.settings.alpha), bad)
            for one, bad, good in zip(self.blocks, worse[: len(self.blocks)], better[: len(self.blocks)], strict=True)
        ]
        numbers = zip(self.rest, worse[len(self.blocks)], better[len(self.blocks)], strict=True)
        return first, [settled(item, _none(bad), _none(good), self.settings.alpha) for item, bad, good in numbers]

    def broken(self) -> list[Claim]:
        """The claims of every estimator on a problem that breaks one there."""
        found = []
        for one in self.claims:
            with np.errstate(invalid="ignore"):
                sampled = ~one.exact & (one.p_adjusted < self.settings.alpha) & (one.effect > self.settings.minimum_bias)
            broken = one.broken | sampled
            keys = [Key(*(one.words[name][one.codes[name][place]] for name in Key._fields)) for place in np.flatnonzero(broken)]
            if not keys:
                continue
            families = {key._replace(instance="") for key in keys}
            suspects = np.isin(one.codes["estimator"], np.unique(one.codes["estimator"][broken]))
            for place in np.flatnonzero(suspects):
                key = Key(*(one.words[name][one.codes[name][place]] for name in Key._fields))
                if key._replace(instance="") in families:
                    row = Row(**_ROW, **key._asdict(), value=_none(one.value[place]), p_value=_none(one.p_value[place]))
                    if row.value is None:
                        row = replace(row, verdict=BROKEN, reason="estimates are NaN or infinite")
                    adjusted = _none(one.p_adjusted[place])
                    found.append(Claim(key, row, float(one.effect[place]), bool(one.exact[place]), bool(broken[place]), adjusted))
        return found


def _without_savings(found: LargeComparison) -> None:
    """Make improved costs of wrong gradients inconclusive, as `verdicts.settle` does."""
    tallies = found.tallies()
    wrong = {item[1:4] for item in tallies if is_wrong(item.metric, item.verdict)}
    costs = {item[1:5] for item in tallies if item.verdict == "improved" and is_cost(item.metric) and item[1:4] in wrong}
    if not costs:
        return
    found.rest = [
        replace(item, verdict="inconclusive", reason=NO_SAVING)
        if item.verdict == "improved" and (*item.key.cell[1:], item.key.metric) in costs
        else item
        for item in found.rest
    ]
    for one in found.blocks:
        names = ("problem", "stage", "estimator", "metric")
        for place in np.flatnonzero(one.drafted.verdict == VERDICTS.index("improved")):
            if tuple(one.words[name][one.codes[name][place]] for name in names) in costs:
                one.drafted.verdict[place] = VERDICTS.index("inconclusive")
                one.reason[place] = len(one.reasons)
        one.reasons.append(NO_SAVING)


def _gain_changed(one: Block, verdict: np.ndarray) -> np.ndarray:
    gain = one.words["metric"].index("gain") if "gain" in one.words["metric"] else -1
    return np.asarray((one.codes["metric"] == gain) & (verdict == VERDICTS.index("changed")))


def _settled(one: Block, worse: np.ndarray, better: np.ndarray, alpha: float) -> np.ndarray:
    """`verdicts.settled`."""
    stable = np.array([rule.role == "stable" for rule in one.rules] or [False])[one.rule]
    found = one.drafted.verdict.copy()
    with np.errstate(invalid="ignore"):
        found[(better < alpha) & ~stable] = VERDICTS.index("improved")
        failing = worse < alpha
    found[failing] = np.where(stable[failing], VERDICTS.index("changed"), VERDICTS.index("regressed"))
    return found


def _split_holm(lists: Sequence[np.ndarray]) -> list[np.ndarray]:
    """`holm` of p-values in several arrays, NaN where there is no test."""
    together = np.concatenate([np.asarray(values, float) for values in lists])
    tested = np.flatnonzero(~np.isnan(together))
    order = tested[np.argsort(together[tested], kind="stable")]
    together[order] = np.maximum.accumulate(np.minimum(1.0, np.arange(len(order), 0, -1) * together[order]))
    return np.split(together, np.cumsum([len(values) for values in lists])[:-1])


def _nan(value: float | None) -> float:
    return np.nan if value is None else value


def _none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def is_gated(metric: str) -> bool:
    """Whether a baseline keeps a metric."""
    return rule_of(metric).gated
