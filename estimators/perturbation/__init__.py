"""Noise on the scores: perturb-and-MAP, Gumbel relaxations, perturbed optimizers."""
