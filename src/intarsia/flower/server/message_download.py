"""One message of a site, fetched from the SuperLink piece by piece, and no further than it may be large."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping

from flwr.app import Array, Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
from flwr.superlink.grid import HttpGrid

from intarsia.core import WireError

AROUND = 512
"""How many bytes Flower may put around each object of a message: its kind, its name, the names of its parts."""
SHARE = 128
"""A message has at most one object for so many of the bytes that it may have."""


class TooMuch(Exception):  # noqa: N818
    """A message with more bytes (so many at least) than it may have."""


class MessageDownload:
    """A message's objects, by name; sizes are counted as they come, since Flower does not tell them before."""

    def __init__(self, grid: HttpGrid, tree: ObjectTree, backoff: float) -> None:
        self.grid, self.name, self.backoff = grid, tree.object_id, backoff
        self.objects = list(dict.fromkeys(part.object_id for part in iterate_object_tree(tree)))
        self._lock = threading.Lock()
        self._bytes = 0

    def message(self, limit: int) -> Message:
        """Fetch the message; one of more bytes than the limit is `TooMuch`, one that makes no sense a `WireError`."""
        if len(self.objects) > limit // SHARE + SHARE:
            raise TooMuch(AROUND * len(self.objects))
        most = limit + AROUND * len(self.objects)
        contents = self._pull(most)
        try:
            unfolded = sum(len(content) + _repeated(content, contents) for content in contents.values())
            if unfolded <= most:
                message = inflate_object_from_contents(self.name, contents)
        except Exception as error:  # Flower's decoders raise anything; one site must not stop the others
            raise WireError(f"Flower cannot read what it sent: {error!r}") from error
        if unfolded > most:
            raise TooMuch(unfolded)
        if not isinstance(message, Message):
            raise WireError("what it sent is no message")
        return message

    def confirm(self) -> None:
        """Let the SuperLink forget the message."""
        request = ConfirmMessageReceivedRequest(
            node=self.grid.node, run_id=self.grid.run.run_id, message_object_id=self.name
        )
        self.grid._runtime_client.ConfirmMessageReceived(request)

    def _pull(self, most: int) -> dict[str, bytes]:
        """Fetch every object; stop as soon as they are too large together.

        A message can be seen before its blocks are there; Flower's own wait for them would be a whole second.
        """
        fetch = make_pull_object_fn_protobuf(
            self.grid._runtime_client.PullObject, self.grid.node, self.grid.run.run_id
        )

        def counted(name: str) -> bytes:
            data: bytes = fetch(name)
            with self._lock:
                self._bytes += len(data)
                if self._bytes > most:
                    raise TooMuch(self._bytes)
            return data

        found: dict[str, bytes] = pull_objects(self.objects, counted, initial_backoff=self.backoff)
        return found


def _repeated(content: bytes, contents: Mapping[str, bytes]) -> int:
    """Return how many bytes an array has beyond its own pieces: it may name one of them many times."""
    kind, pieces, _ = get_object_head_values_from_object_content(content)
    if kind != Array.__qualname__:
        return 0
    order: list[int] = json.loads(get_object_body(content, Array))["arraychunk_ids"]
    sizes = [len(contents[piece]) for piece in pieces]
    return sum(sizes[number] for number in order) - sum(sizes)
