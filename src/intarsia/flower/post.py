"""Parcels over Flower's Grid: sent one by one, answers taken as they come."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.superlink.grid import http_grid
from google.protobuf.message import DecodeError

from intarsia.blocks import WireError
from intarsia.flower.parcel import Parcel
from intarsia.flower.records import from_records, size_of, to_records

POLL = 0.15
ROOM = 1 << 24
"""How many bytes an answer without blocks may have."""
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, IndexError, DecodeError)
"""What Flower raises for messages that are none."""
QUERY, TRAIN, EVALUATE = "query", "train", "evaluate"


@dataclass(frozen=True)
class Trouble:
    """No answer that can be used, and why."""

    reason: str
    refused: bool = False
    """Whether something came, and was not taken."""


class Post:
    """Sends parcels to nodes; an answer is known by the message that it answers."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        # A message can be seen before its blocks are there; Flower then waits a whole second.
        setattr(http_grid, "pull_objects", partial(pull_objects, initial_backoff=POLL / 3))  # noqa: B010
        self._limits: dict[str, int] = {}

    def nodes(self) -> list[NodeInfo]:
        """Return the nodes that are connected."""
        return list(self.grid.get_nodes())

    def send(self, node: int, parcel: Parcel, kind: str, seconds: float, limit: int = ROOM) -> str | None:
        """Send a parcel; return the name of the message (None: the node cannot be reached).

        It is void after so many seconds; an answer with more bytes than `limit` is refused.
        """
        message = Message(to_records(parcel), node, kind, ttl=max(1.0, seconds))
        name = next(iter(self.grid.push_messages([message])), None)
        if name:
            self._limits[name] = limit
        return name or None

    def receive(self, waiting: set[str]) -> Iterator[tuple[str, Parcel | Trouble]]:
        """Yield what has come in answer to these messages."""
        for message in self._pull(waiting) if waiting else ():
            if isinstance(message, str):
                yield message, Trouble("Flower cannot make a message of what it sent", True)
                continue
            name = message.metadata.reply_to_message_id
            if name in waiting:
                yield name, self._open(message, self._limits.pop(name, ROOM))

    def _pull(self, waiting: set[str]) -> list[Message | str]:
        """Return the messages that are there; for one that Flower cannot read, the name of what it answers."""
        try:
            return list(self.grid.pull_messages(waiting))
        except UNREADABLE:
            if len(waiting) == 1:
                return list(waiting)
            return [found for name in sorted(waiting) for found in self._pull({name})]

    def pause(self) -> None:
        """Wait a moment before asking again."""
        time.sleep(POLL)

    def _open(self, message: Message, limit: int) -> Parcel | Trouble:
        if message.has_error():
            error = message.error
            return Trouble(f"Flower reports error {error.code}: {error.reason or 'no reason given'}")
        try:
            size = size_of(message.content)
            if size > limit:
                return Trouble(f"it sent {size} bytes, more than the {limit} that its answer may have", True)
            return from_records(message.content)
        except WireError as error:
            return Trouble(str(error), True)
