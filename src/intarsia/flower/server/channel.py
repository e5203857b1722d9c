"""Parcels over Flower's Grid: sent one by one, answers taken as they come."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.superlink.grid import HttpGrid

from intarsia.core import WireError, plain, plain_values
from intarsia.flower.message_records import from_records, size_of, to_records
from intarsia.flower.messages import Parcel
from intarsia.flower.server.message_download import Download, TooMuch

POLL = 0.15
ROOM = 1 << 24
"""How many bytes an answer without blocks may have."""
QUERY, TRAIN, EVALUATE = "query", "train", "evaluate"


@dataclass(frozen=True)
class Trouble:
    """No answer that can be used, and why."""

    reason: str
    refused: bool = False
    """Whether something came, and was not taken."""


class Post:
    """Sends parcels to nodes; an answer is known by the message that it answers.

    It is the door for all that sites say: what is larger than it may be is not taken in, what cannot be read becomes
    `Trouble`, and texts come out plain.
    """

    def __init__(self, grid: HttpGrid) -> None:
        self.grid = grid
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
        if not waiting:
            return
        found = self.grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=waiting))
        for about, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            name = about.metadata.reply_to_message_id
            if name in waiting:
                yield name, self._take(Download(self.grid, tree, POLL / 3), self._limits.pop(name, ROOM))

    def pause(self) -> None:
        """Wait a moment before asking again."""
        time.sleep(POLL)

    def _take(self, download: Download, limit: int) -> Parcel | Trouble:
        try:
            return _open(download.message(limit), limit)
        except TooMuch as error:
            return Trouble(f"it sent {error} bytes, more than the {limit} that its answer may have", True)
        except (WireError, RecursionError) as error:
            return Trouble(plain(str(error)), True)
        except ObjectPullError as error:
            return Trouble(f"its answer did not arrive as a whole: {error}")
        finally:
            download.confirm()


def _open(message: Message, limit: int) -> Parcel | Trouble:
    if message.has_error():
        error = message.error
        return Trouble(plain(f"Flower reports error {error.code}: {error.reason or 'no reason given'}"))
    size = size_of(message.content)
    if size > limit:
        raise TooMuch(size)
    parcel = from_records(message.content)
    return Parcel(plain_values(parcel.header), parcel.blocks)
