"""The report of a large run: answers for every problem on one page, and a page for each structure next to it."""

from .blocks import trains
from .folder import write
from .gathered import Gathered, gather

__all__ = ["Gathered", "gather", "trains", "write"]
