"""What people see of comparisons: loading of runs and baselines, and text, Markdown, a page, JSON and CSV."""
