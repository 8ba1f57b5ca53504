"""Verbs of the command line: functions of a dataclass of options, or of typer's parameters, with heavy imports inside for a quick help."""
