"""What happens at a client: join the blocks, do the local step, split, answer."""

from intarsia.clients.runtime import Answer, ClientRuntime
from intarsia.clients.state import AT_SITE, KEPT, State, state_version
from intarsia.clients.workbench import resolve_device

__all__ = ["AT_SITE", "KEPT", "Answer", "ClientRuntime", "State", "resolve_device", "state_version"]
