"""The ClientApp: hands each message to the site's agent and brings back the answer.

Flower starts a new process for every message. This file therefore imports nothing but flwr and the standard
library; torch, data and models stay loaded in the agent. `intarsia flower init` copies it into the app.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

MAGIC = b"intarsia"
HEADER = "intarsia"
SAFETENSORS = "safetensors"

app = ClientApp()


@app.query()
@app.train()
@app.evaluate()
def relay(message: Message, context: Context) -> Message:
    """Send the message to the agent that the node's configuration names; return its answer."""
    where = str(context.node_config.get("agent", ""))
    token = str(context.node_config.get("token", ""))
    with _connect(where, token) as agent:
        for piece in frame(message.content):
            agent.sendall(piece)
        with agent.makefile("rb") as stream:
            return Message(unframe(stream.read), reply_to=message)


def frame(content: RecordDict) -> Iterator[bytes]:
    """Yield a message as bytes: magic, size of the index, index, then the blocks one after the other."""
    blocks = {name: record[SAFETENSORS].data for name, record in content.array_records.items()}
    header = content.config_records[HEADER]["json"]
    index = json.dumps(
        {"header": header, "records": {name: len(data) for name, data in blocks.items()}}
    ).encode()
    yield MAGIC + len(index).to_bytes(8, "little") + index
    yield from blocks.values()


def unframe(read: Callable[[int], bytes]) -> RecordDict:
    """Read a message from a function that returns so many bytes."""
    if _take(read, len(MAGIC)) != MAGIC:
        raise ConnectionError("what answers there is no site agent")
    index = json.loads(_take(read, int.from_bytes(_take(read, 8), "little")))
    content = RecordDict({HEADER: ConfigRecord({"json": index["header"]})})
    for name, size in index["records"].items():
        array = Array("uint8", (size,), SAFETENSORS, _take(read, size))
        content[name] = ArrayRecord({SAFETENSORS: array})
    return content


def _take(read: Callable[[int], bytes], size: int) -> bytes:
    data = read(size)
    if len(data) < size:
        raise ConnectionError(
            "the site agent closed the connection before its answer was complete: see its log"
        )
    return data


def _connect(where: str, token: str) -> socket.socket:
    if not where:
        raise ConnectionError("the node does not name its agent: start it with --node-config 'agent=\"...\"'")
    try:
        host, _, port = where.rpartition(":")
        if host and port.isdigit():
            connection = socket.create_connection((host, int(port)))
            connection.sendall(Path(token).read_text().strip().encode())
        else:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(where)
    except OSError as error:
        raise ConnectionError(
            f"the site agent does not answer at {where} ({error}): start it with: intarsia site SITE.toml"
        ) from error
    return connection
