"""Speed of the oracles: every operation at set sizes, against every peer that is installed, in one run."""
