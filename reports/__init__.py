"""From rows to what people read: the stored table, small tables, figures, a page, the command line.

This module imports nothing, so that ``structgrad --help`` stays quick.
"""
