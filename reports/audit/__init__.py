"""Audits as people read them."""
