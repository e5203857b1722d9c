"""The idea itself: blocks, cuts, addresses, the pool, merges, and what travels."""

from intarsia.blocks.address import ALL, ME, Address
from intarsia.blocks.block import Block, Layout, TensorLayout, check_block
from intarsia.blocks.codecs import CODECS, Code, Codec, coded_bytes, decode_block, encode_block, received
from intarsia.blocks.cut import Cut, FittedCut
from intarsia.blocks.errors import (
    AddressError,
    CheckpointError,
    ClientError,
    CutError,
    DataError,
    IntarsiaError,
    IntarsiaWarning,
    Refused,
    RunFolderError,
    SettingsError,
    TuningError,
    WireError,
    warn,
    warnings_told,
)
from intarsia.blocks.expected import Expected, Number, NumberList, Table
from intarsia.blocks.merge import MERGES, ROWS, Fold, Merge, Nova, Relaxed, SliceMean, Sums, leading_slice
from intarsia.blocks.part import part
from intarsia.blocks.pool import Pool
from intarsia.blocks.text import file_name, indented, plain, plain_values
from intarsia.blocks.wire import ClientPlan, Plan, Task, Traffic, Update, Values, pack, unpack

__all__ = [
    "ALL",
    "CODECS",
    "ME",
    "MERGES",
    "ROWS",
    "Address",
    "AddressError",
    "Block",
    "CheckpointError",
    "ClientError",
    "ClientPlan",
    "Code",
    "Codec",
    "Cut",
    "CutError",
    "DataError",
    "Expected",
    "FittedCut",
    "Fold",
    "IntarsiaError",
    "IntarsiaWarning",
    "Layout",
    "Merge",
    "Nova",
    "Number",
    "NumberList",
    "Plan",
    "Pool",
    "Refused",
    "Relaxed",
    "RunFolderError",
    "SettingsError",
    "SliceMean",
    "Sums",
    "Table",
    "Task",
    "TensorLayout",
    "Traffic",
    "TuningError",
    "Update",
    "Values",
    "WireError",
    "check_block",
    "coded_bytes",
    "decode_block",
    "encode_block",
    "file_name",
    "indented",
    "leading_slice",
    "pack",
    "part",
    "plain",
    "plain_values",
    "received",
    "unpack",
    "warn",
    "warnings_told",
]
