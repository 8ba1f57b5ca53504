"""The study of learning: which estimators learn best, and which numbers of their gradients predict it."""
