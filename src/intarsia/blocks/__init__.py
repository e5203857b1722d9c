"""The idea itself: blocks, cuts, addresses, the pool, merges, and what travels."""

from intarsia.blocks.address import ALL, ME, Address
from intarsia.blocks.block import Block, Layout, TensorLayout, check_block
from intarsia.blocks.codecs import CODECS, Code, Codec, coded_bytes, decode_block, encode_block, received
from intarsia.blocks.cut import Cut, FittedCut
from intarsia.blocks.expected import Expected, Number, NumberList, Table
from intarsia.blocks.fold import Fold
from intarsia.blocks.merge import Merge
from intarsia.blocks.pool import Pool
from intarsia.blocks.store import VERSION, BlockStore
from intarsia.blocks.sums import Sums
from intarsia.blocks.wire import ClientPlan, Plan, Task, Traffic, Update, Values, pack, unpack

__all__ = [
    "ALL",
    "CODECS",
    "ME",
    "VERSION",
    "Address",
    "Block",
    "BlockStore",
    "ClientPlan",
    "Code",
    "Codec",
    "Cut",
    "Expected",
    "FittedCut",
    "Fold",
    "Layout",
    "Merge",
    "Number",
    "NumberList",
    "Plan",
    "Pool",
    "Sums",
    "Table",
    "Task",
    "TensorLayout",
    "Traffic",
    "Update",
    "Values",
    "check_block",
    "coded_bytes",
    "decode_block",
    "encode_block",
    "pack",
    "received",
    "unpack",
]
