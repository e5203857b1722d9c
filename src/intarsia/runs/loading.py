"""A state as a manifest names it: blocks by their versions, read from the store."""

from __future__ import annotations

from collections.abc import Mapping

from intarsia.blocks import Address, BlockStore, Code, Pool
from intarsia.runs.manifests import AS_IT_IS, TABLES, CodeVersions, Manifest
from intarsia.runs.records import ClientRecord, Records
from intarsia.runs.state import RunState


def load_state(manifest: Manifest, records: Mapping[str, ClientRecord], store: BlockStore) -> RunState:
    """Return the state that a manifest names, with every block checked."""
    pool = Pool({Address.parse(text): store.get(version) for text, version in manifest.pool.items()})
    for record in records.values():
        for version in record.private:
            store.get(version)
    for versions in manifest.initial.values():
        for version in versions.values():
            store.get(version)
    return RunState(
        pool=pool,
        clients=Records(records),
        files=dict.fromkeys(TABLES, 0) | dict(manifest.files),
        codes={Address.parse(address): _code(own, store) for address, own in manifest.codes.items()},
        **{name: getattr(manifest, name) for name in AS_IT_IS},
    )


def keep_code(code: Code, store: BlockStore) -> CodeVersions:
    """Put the blocks of a code into the store; return their versions."""
    base, change, lost = (store.put(block) for block in (code.base, code.change, code.lost))
    return CodeVersions(base=base, change=change, lost=lost, version=code.version)


def _code(named: CodeVersions, store: BlockStore) -> Code:
    base, change, lost = (store.get(version) for version in (named.base, named.change, named.lost))
    return Code(base=base, change=change, lost=lost, version=named.version)
