"""Verbs of the command line, gathered by `structgrad.reports.cli`.

A verb is a function of a dataclass of options, or of typer's parameters. It imports heavy modules when it runs, so that help stays quick.
"""
