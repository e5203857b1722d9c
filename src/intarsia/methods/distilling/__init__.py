"""Methods whose clients learn from scores, class means or a knowledge network: FedMD, FCCL, FedGH, FedKEMF."""

from intarsia.methods.distilling.headed import Headed, headed
from intarsia.methods.distilling.pair import Pair

__all__ = ["Headed", "Pair", "headed"]
