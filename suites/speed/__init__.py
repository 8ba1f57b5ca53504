"""How fast the oracles are: every operation at set sizes, against every peer that is installed, in one run."""
