"""Verbs of the command line: a file or a folder each.

Each is a function whose signature is its options; `structgrad.reports.cli` gathers them. A verb imports what it needs when it runs, so that
help and completion stay quick.
"""
