"""``structgrad run``: durations, files of options, estimates, the run itself, and the command that repeats it."""
