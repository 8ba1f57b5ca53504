"""What there is to measure, and what is known of each thing: for `list`, `describe` and the completion of names."""
