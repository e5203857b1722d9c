"""FedEM: mixtures of shared components."""

from intarsia.methods.fedem.mixture import Differ, Mixture, mixture_of

__all__ = ["Differ", "Mixture", "mixture_of"]
