"""The report of a run: one self-contained page, and the same tables as Markdown. Both are made from the same `Table` objects."""

from .content import VERDICT_MEANING, contradictions, headline, report
from .learning import learning_of, of_gradients
from .page import to_html, to_markdown

__all__ = ["VERDICT_MEANING", "contradictions", "headline", "learning_of", "of_gradients", "report", "to_html", "to_markdown"]
