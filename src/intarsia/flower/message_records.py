"""Site messages as Flower messages: one ArrayRecord a block, one ConfigRecord for the header.

A block's tensors travel as one array of bytes (safetensors): Flower makes several requests for every array.
"""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from intarsia.core import WireError
from intarsia.flower.messages import SiteMessage

HEADER = "intarsia"
SAFETENSORS = "safetensors"


def to_records(site_message: SiteMessage) -> RecordDict:
    """Return the site message as the content of a Flower message."""
    content = RecordDict({HEADER: ConfigRecord({"json": site_message.header_text()})})
    for name, data in site_message.records():
        content[name] = ArrayRecord({SAFETENSORS: Array("uint8", (len(data),), SAFETENSORS, data)})
    return content


def from_records(content: RecordDict) -> SiteMessage:
    """Return the site message that a Flower message holds; anything else is an error."""
    if content.metric_records or content.config_records.keys() != {HEADER}:
        raise WireError("a message of this app holds blocks and one header, nothing else")
    records = {name: _bytes(name, record) for name, record in content.array_records.items()}
    return SiteMessage.of(content.config_records[HEADER].get("json"), records)


def size_of(content: RecordDict) -> int:
    """Return how many bytes the blocks and the header of a message have."""
    arrays = (array for record in content.array_records.values() for array in record.values())
    headers = (value for record in content.config_records.values() for value in record.values())
    return sum(len(a.data) for a in arrays) + sum(len(v) for v in headers if isinstance(v, (str, bytes)))


def _bytes(block: str, record: ArrayRecord) -> bytes:
    array = record.get(SAFETENSORS)
    if array is None or len(record) != 1 or array.stype != SAFETENSORS or not isinstance(array.data, bytes):
        raise WireError(f"block '{block}' did not come as safetensors")
    return array.data
