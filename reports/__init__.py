"""Reports on rows: the stored table, small tables, figures, a page, the command line.

Names are imported at their first use, so that ``structgrad --help`` stays quick.
"""

TYPE_CHECKING = False  # as of `typing`, whose import takes longer than this package
if TYPE_CHECKING:
    from .analysis.recommendation import Recommendation, recommend

__all__ = ["Recommendation", "recommend"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .analysis import recommendation

    return getattr(recommendation, name)
