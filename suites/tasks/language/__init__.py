"""Tasks of language: list operations, parsing, tagging, matching."""
