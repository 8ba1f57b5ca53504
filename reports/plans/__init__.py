"""From the options of ``structgrad run`` to a plan and back: durations, files of options, estimates, the command that repeats a run."""
