"""Example sizes: at which of them suites list, draw and time a structure that states its derivations."""

from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True)
class Examples:
    """What an oracle of `structgrad.oracles.derived` says of itself to problems, benchmarks and the speed table; literals, all of it.

    A size is a tuple of numbers in the order of `DerivedOracle.size_names`.

    Attributes:
        small: sizes of 60 to 20 000 structures, from which the built-in problem draws in turn; 6, 7 and 8 by 2 by default.
        usual: a size that people use, at which operations are timed; 32 by 8 by default.
        like: the structure whose models the built-in problem is as peaked as, such as ``"linear_chain"``.
        counted: what lengths of items are numbers of.

    Example:
        >>> Examples(like="linear_chain", counted="tokens").filled(("length", "tags")).small
        ((6, 2), (7, 2), (8, 2))
    """

    small: tuple[tuple[int, ...], ...] = ()
    usual: tuple[int, ...] = ()
    like: str = ""
    counted: str = "parts along the first axis"

    def filled(self, size_names: tuple[str, ...]) -> Self:
        """With the defaults in place of what is not declared, for sizes of these names."""
        others = len(size_names) - 1
        small = self.small or tuple((first, *[2] * others) for first in (6, 7, 8))
        return replace(self, small=small, usual=self.usual or (32, *[8] * others))
