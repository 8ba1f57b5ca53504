"""A module that cannot be imported."""

raise ImportError("no such library, as it were")
