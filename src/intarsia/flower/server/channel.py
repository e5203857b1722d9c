"""Site messages over Flower's Grid: sent one by one, answers taken as they come."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.superlink.grid import HttpGrid

from intarsia.core import WireError, harmless, harmless_values
from intarsia.flower.message_records import from_records, size_of, to_records
from intarsia.flower.messages import SiteMessage
from intarsia.flower.server.message_download import MessageDownload, TooMuch

POLL = 0.15
ROOM = 1 << 24
"""How many bytes an answer without blocks may have."""
QUERY, TRAIN, EVALUATE = "query", "train", "evaluate"


@dataclass(frozen=True)
class NoAnswer:
    """No answer that can be used, and why."""

    reason: str
    refused: bool = False
    """Whether something came, and was not taken."""


class Channel:
    """Sends messages to nodes; an answer is known by the message that it answers.

    It is the door for all that sites say: what is larger than it may be is not taken in, what cannot be read becomes
    `NoAnswer`, and texts come out plain.
    """

    def __init__(self, grid: HttpGrid) -> None:
        self.grid = grid
        self._limits: dict[str, int] = {}

    def nodes(self) -> list[NodeInfo]:
        """Return the nodes that are connected."""
        return list(self.grid.get_nodes())

    def send(
        self, node: int, site_message: SiteMessage, kind: str, seconds: float, limit: int = ROOM
    ) -> str | None:
        """Send a site message; return the name of the message (None: the node cannot be reached).

        It is void after so many seconds; an answer with more bytes than `limit` is refused.
        """
        message = Message(to_records(site_message), node, kind, ttl=max(1.0, seconds))
        name = next(iter(self.grid.push_messages([message])), None)
        if name:
            self._limits[name] = limit
        return name or None

    def receive(self, waiting: set[str]) -> Iterator[tuple[str, SiteMessage | NoAnswer]]:
        """Yield what has come in answer to these messages; of a second answer to one, nothing."""
        if not waiting:
            return
        waiting = set(waiting)
        found = self.grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=waiting))
        for about, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            name, download = about.metadata.reply_to_message_id, MessageDownload(self.grid, tree, POLL / 3)
            if name in waiting:
                waiting.remove(name)
                yield name, self._take(download, self._limits.pop(name, ROOM))
            else:
                download.confirm()

    def forget(self, names: Iterable[str]) -> None:
        """Wait no more for answers to these messages."""
        for name in names:
            self._limits.pop(name, None)

    def pause(self) -> None:
        """Wait a moment before asking again."""
        time.sleep(POLL)

    def _take(self, download: MessageDownload, limit: int) -> SiteMessage | NoAnswer:
        try:
            return _open(download.message(limit), limit)
        except TooMuch as error:
            return NoAnswer(f"it sent {error} bytes, more than the {limit} that its answer may have", True)
        except (WireError, RecursionError) as error:
            return NoAnswer(harmless(str(error)), True)
        except ObjectPullError as error:
            return NoAnswer(f"its answer did not arrive as a whole: {error}")
        finally:
            download.confirm()


def _open(message: Message, limit: int) -> SiteMessage | NoAnswer:
    if message.has_error():
        error = message.error
        return NoAnswer(harmless(f"Flower reports error {error.code}: {error.reason or 'no reason given'}"))
    size = size_of(message.content)
    if size > limit:
        raise TooMuch(size)
    site_message = from_records(message.content)
    return SiteMessage(harmless_values(site_message.header), site_message.blocks)
