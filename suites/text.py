"""Text of numbers, times and counts for people, with the digits that are shown everywhere; JSON and Parquet files keep all digits."""

import math
from collections.abc import Mapping, Sequence

from .statistics.interval import Interval

MISSING = "–"  # the text of a missing value
ZERO = 1e-12  # anything smaller is rounding, and is shown as 0
COMPILING = "compiling kernels (once per machine)"  # the state of a process that compiles kernels before it can measure

_IN_FULL = 1e6


def number(value: float | None, digits: int = 3) -> str:
    """A measured value with some significant digits; a whole number has no decimal point.

    Example:
        >>> [number(value) for value in (0.12345, 12345.0, 2.5e-7, 1e-17, 1 - 1e-15, 0.5, 0.9999, 99.96, 1.5e7, -0.00012)]
        ['0.123', '12300', '2.5e-7', '0', '1', '0.500', '1.00', '100', '1.5e7', '-1.2e-4']
        >>> [number(value) for value in (None, float("nan"), math.inf, -math.inf)], number(0.123, 1)
        (['–', '–', '∞', '−∞'], '0.1')
    """
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if abs(value) < ZERO:
        return "0"
    near = rounded(value, digits)
    if abs(value) < _IN_FULL and abs(value - round(value)) < ZERO:
        return f"{near:.0f}"
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    if 1e-3 <= abs(value) < _IN_FULL:
        return f"{near:.{max(0, digits - 1 - int(exponent))}f}"
    return f"{float(mantissa):g}e{int(exponent)}"


def rounded(value: float, digits: int) -> float:
    """The nearest number with so many significant digits."""
    return float(f"{value:.{digits - 1}e}")


def significant(value: float, digits: int = 6) -> str:
    """A number without trailing zeros: a setting, a probability, an error, or one of two that are compared."""
    return f"{value:.{digits}g}"


def whole(value: float) -> str:
    """A count, in full: 12,345."""
    return f"{value:,.0f}"


def percent(value: float | None) -> str:
    """A share, such as 26%, or "less than 1%"."""
    if value is None:
        return MISSING
    return "less than 1%" if 0 < value < 0.005 else f"{value:.0%}"


def interval(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """``0.120 [0.100, 0.150]``; the value alone if the interval is missing or a point."""
    middle, lower, upper = number(value), number(low), number(high)
    return middle if MISSING in (lower, upper) or lower == upper == middle else f"{middle} [{lower}, {upper}]"


def estimate(found: Interval) -> str:
    """A value with its interval, as `interval` shows it."""
    return interval(found.value, found.low, found.high)


def plus_minus(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """A value with half of its interval, for narrow columns: 0.512 ± 0.020."""
    # Sums over thousands of replays have more rounding than `ZERO`.
    shown = number(0.0 if value is not None and abs(value) < 1e-9 else value)
    return shown if value is None or low is None or high is None else f"{shown} ± {number((high - low) / 2, 2)}"


def coefficient(found: Interval | float | None) -> str:
    """A correlation with two digits, and its interval if there is one: +.58 [+.32, +.77]."""
    if found is None:
        return MISSING
    if isinstance(found, float | int):
        size = f"{abs(found):.2f}"
        return ("−" if found < 0 and float(size) else "+") + size.removeprefix("0")
    middle, low, high = map(coefficient, (found.value, found.low, found.high))
    return middle if MISSING in (low, high) else f"{middle} [{low}, {high}]"


def change(found: Interval, scale: str) -> str:
    """A ratio or a difference, and its interval if there is one: ×1.2 [1.1, 1.3], or -0.02."""
    value, low, high = (None if one is None or math.isnan(one) else one for one in (found.value, found.low, found.high))
    if value is None:
        return ""
    shown = f"×{value:.4g}" if scale == "ratio" else f"{value:+.4g}"
    return shown if low is None or high is None else f"{shown} [{low:.4g}, {high:.4g}]"


def duration(seconds: float) -> str:
    """A time in seconds, minutes or hours.

    Example:
        >>> [duration(seconds) for seconds in (0.25, 4.2, 42.3, 75, 3700, 200000)]
        ['0.25 s', '4.2 s', '42 s', '1 min 15 s', '1 h 1 min', '55 h 33 min']
    """
    if seconds < 10:
        return f"{number(seconds, 2)} s"
    full = round(seconds)
    if full < 60:
        return f"{full} s"
    return f"{full // 60} min {full % 60} s" if full < 3600 else f"{full // 3600} h {full % 3600 // 60} min"


def plural(count: int, one: str, many: str = "") -> str:
    """A count with its noun."""
    return f"{whole(count)} {one if count == 1 else many or one + 's'}"


def cells_line(counts: Mapping[str, int]) -> str:
    """The line that every run ends with: 1 cell ok, 0 failed, 3 skipped."""
    broken = f" ({whole(counts['broken'])} by NaN or infinity)" if counts.get("broken") else ""
    return f"{plural(counts['ok'], 'cell')} ok, {whole(counts['failed'])} failed{broken}, {whole(counts['skipped'])} skipped."


def listed(names: Sequence[str], most: int = 4) -> str:
    """The first of some names, and how many more there are: a, b and 1 more."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def below(bound: float) -> str:
    """The upper bound of a bias that was not found, in percent of the gradient: |bias| < 2.5 %."""
    return f"|bias| < {number(100 * bound, 2)} %"


def exponential(logarithm: float) -> str:
    """A count that is given by its logarithm, such as 16,807, or about 2·10^150."""
    if logarithm < math.log(_IN_FULL):
        return whole(round(math.exp(logarithm)))
    exponent, rest = divmod(logarithm / math.log(10), 1)
    return f"about {10**rest:.0f}·10^{exponent:.0f}"


def first_sentence(kind: type) -> str:
    """The first sentence of a docstring, as plain text."""
    paragraph = (kind.__doc__ or "").strip().partition("\n\n")[0]
    return " ".join(paragraph.split()).replace("``", "`").partition(". ")[0].rstrip(".")


def reason_of(error: Exception) -> str:
    """The reason in a row of an error: its type, and the first line of its message."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
