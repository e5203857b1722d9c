"""Parcels as Flower messages: one ArrayRecord a block, one ConfigRecord for the header."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from intarsia.blocks import WireError
from intarsia.flower.parcel import Parcel

HEADER = "intarsia"
RAW = "raw"


def to_records(parcel: Parcel) -> RecordDict:
    """Return the parcel as the content of a Flower message."""
    content = RecordDict({HEADER: ConfigRecord({"json": parcel.full_header()})})
    for name, entries in parcel.entries():
        arrays = {key: Array(kind, shape, RAW, data) for key, kind, shape, data in entries}
        content[name] = ArrayRecord(arrays)
    return content


def from_records(content: RecordDict) -> Parcel:
    """Return the parcel that a Flower message holds; anything else is an error."""
    if content.metric_records or content.config_records.keys() != {HEADER}:
        raise WireError("a message of this app holds blocks and one header, nothing else")
    records = {
        name: [(key, a.dtype, tuple(a.shape), _raw(name, key, a)) for key, a in record.items()]
        for name, record in content.array_records.items()
    }
    return Parcel.of(content.config_records[HEADER].get("json"), records)


def size_of(content: RecordDict) -> int:
    """Return how many bytes the tensors of a message have."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())


def _raw(block: str, name: str, array: Array) -> bytes:
    if array.stype != RAW:
        raise WireError(f"block '{block}': tensor '{name}' came as {array.stype}, not as raw bytes")
    return array.data
