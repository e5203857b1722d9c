"""What clients and server agree on before a run."""

from intarsia.setup.masking import check_secure_sums, obstacle
from intarsia.setup.setup import Setup, Template

__all__ = ["Setup", "Template", "check_secure_sums", "obstacle"]
