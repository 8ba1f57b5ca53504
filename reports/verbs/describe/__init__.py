"""Names and facts of all that can be measured: for `list`, `describe` and the completion of names."""
