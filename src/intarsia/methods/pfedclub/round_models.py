"""What a server works with in one round: the models of its clients, taken to blocks, and public data."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from intarsia.core import CutError, DataError, SettingsError
from intarsia.methods.distilling.common import check_public
from intarsia.methods.pfedclub.cka import FunctionalGroups, Similarity, block_features, compare, group_blocks
from intarsia.methods.pfedclub.decompose import Chains, decompose
from intarsia.methods.pfedclub.stitch_tuning import Prefixes
from intarsia.methods.pfedclub.views import PublicData, as_inputs, drawn
from intarsia.methods.server import Server
from intarsia.models import Spec
from intarsia.training import channels_last_layout

SAMPLES = 512
"""Public samples that are enough to compare blocks by."""


@dataclass(frozen=True)
class RoundModels:
    """The models of a round's clients in blocks, compared and grouped, and what their blocks give for public data."""

    server: Server
    seed: int
    specs: Mapping[str, Spec]
    chains: Chains
    """Functional blocks by client."""
    similarity: Similarity
    groups: FunctionalGroups
    prefixes: Prefixes

    @classmethod
    def of(cls, server: Server, clients: Sequence[str], seed: int, k: int, public: PublicData) -> RoundModels:
        """Take the models of the round to pieces, compare and group their blocks; models run side by side."""
        specs = {name: spec_of(server, name) for name in clients}
        fast = not server.training.plain and all(map(takes_channels_last, specs.values()))
        models = {name: _model(server, name) for name in clients}
        chains = {
            name: decompose(channels_last_layout(model) if fast else model, specs[name].shape)
            for name, model in models.items()
        }
        assert server.public is not None  # checked before the run began
        examples = drawn(server.public, SAMPLES, server.seed, "cka samples")  # the same in all rounds
        x = as_inputs(examples)
        features = server.each(lambda name: block_features(chains[name], x), list(chains))
        similarity = compare(chains, dict(zip(chains, features, strict=True)))
        groups = group_blocks(similarity, k, seed)
        return cls(server, seed, specs, chains, similarity, groups, Prefixes(chains, public))


def spec_of(server: Server, client: str) -> Spec:
    """Return the architecture of a client's model, or say why the server cannot have it whole."""
    known = server.model_of(client)
    if known.spec is None:
        raise SettingsError(
            f"teachers travel as registered architectures, and client '{client}' has a model that was given in Python: "
            "name its architecture in the settings (your own one after adding it to intarsia.models.MODELS)"
        )
    if any(server.address(block, client).private for block in known.blocks):
        raise SettingsError(
            f"teachers are made of clients' whole models, but a part of client '{client}''s stays at home: "
            "leave sharing out of the settings, or set sharing.norms to shared"
        )
    return known.spec


def _model(server: Server, client: str) -> nn.Module:
    """Return a client's model as the server last received it."""
    known = server.model_of(client)
    model = copy.deepcopy(known.module)
    blocks = [server.pool.get(server.address(block, client)) for block in known.blocks]
    model.load_state_dict({name: tensor for block in blocks for name, tensor in block.tensors.items()})
    return model


@functools.cache
def takes_channels_last(spec: Spec) -> bool:
    """Try whether blocks take maps with the channels last: those that flatten with `view` do not."""
    try:
        for block in decompose(channels_last_layout(spec.build(0)), spec.shape):
            if len(block.takes) == 3:
                block.module(torch.zeros(2, *block.takes).contiguous(memory_format=torch.channels_last))
    except (CutError, RuntimeError):
        return False
    return True


def check_models(server: Server) -> None:
    """Refuse models that have no functional blocks, or are more than their architectures."""
    for spec, client in {spec_of(server, name): name for name in server.clients}.items():
        plain = spec.build(0)
        try:
            decompose(plain, spec.shape)
        except CutError as error:
            raise CutError(f"the model of client '{client}': {error}") from error
        if plain.state_dict().keys() != server.model_of(client).module.state_dict().keys():
            raise SettingsError(
                f"the model of client '{client}' has more tensors than its architecture (adapters?): teachers are put "
                "together from architectures as they are"
            )


def check_samples(server: Server, labelled: bool) -> None:
    """Refuse public data that clients' models do not take and tell apart, or that cannot be changed as images."""
    public = check_public(server)
    outputs = {spec_of(server, client).outputs for client in server.clients}
    low, high = float(public.x.min()), float(public.x.max())
    pixels = not public.x.is_floating_point() or 0 <= low <= high <= 1
    faults = {
        f"all clients' models need as many outputs, to be compared; they have {sorted(outputs)}": len(outputs)
        > 1,
        "blocks cannot be compared on one public sample; give more": len(public) < 2,
        "public data has labels that no client's model can give": labelled
        and int(public.y.max()) >= min(outputs),
        "without labels, public data must be images": not labelled and public.x.dim() != 4,
        "without labels, public images are changed as pixels, so they must be bytes or numbers of 0 ... 1; these are "
        f"{low:g} ... {high:g}: divide by 255, or give raw images and a scaling": not labelled and not pixels,
    }
    for fault, there in faults.items():
        if there:
            raise DataError(fault)
