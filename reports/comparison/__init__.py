"""Comparisons as people read them: loading of runs and baselines, and text, Markdown, a page, JSON and CSV."""
