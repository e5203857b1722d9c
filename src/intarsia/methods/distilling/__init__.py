"""Methods whose clients learn from scores, class means or a knowledge network: FedMD, FCCL, FedGH, FedKEMF."""

from intarsia.methods.distilling.fedgh import Headed, headed
from intarsia.methods.distilling.fedkemf import Pair

__all__ = ["Headed", "Pair", "headed"]
