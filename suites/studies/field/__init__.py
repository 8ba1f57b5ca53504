"""The newest estimators of the field beside leave-one-out, and combinations of published ones."""
