"""pFedBayes: Gaussian weights, shared and personal."""

from intarsia.methods.pfedbayes.gaussian import Averaged, gaussian, kl_divergence

__all__ = ["Averaged", "gaussian", "kl_divergence"]
