"""Small faults that are put into the sources, to see which tests notice: where they may be, which are drawn, and what runs."""
