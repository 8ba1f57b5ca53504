"""The laws of an audit, one file per kind."""
