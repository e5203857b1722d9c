"""FedMN: a pool of modules, a router, and networks that clients assemble of them."""

from intarsia.methods.fedmn.links import ENCODER
from intarsia.methods.fedmn.module_pool import ModulePool, ModulePoolLayout, pool_of
from intarsia.methods.fedmn.router import Form, Router

__all__ = ["ENCODER", "Form", "ModulePool", "ModulePoolLayout", "Router", "pool_of"]
