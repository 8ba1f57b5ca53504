"""Compiled steps of statistics; they load the compiler, so they are imported where they are called."""
