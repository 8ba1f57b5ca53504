"""What asv loads: thin classes over the suites. asv imports every module here, so nothing else belongs in this folder."""
