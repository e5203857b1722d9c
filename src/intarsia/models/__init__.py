"""Networks, in plain torch, and what turns one into another."""

from intarsia.models.adapters import ADAPTERS, Adapters, add_adapters, has_adapters, remove_adapters
from intarsia.models.assembly import (
    Assembled,
    Assembly,
    Blueprint,
    Constraint,
    Cost,
    activations_limit,
    assemble,
    at_most,
    chain_cost,
    flops_limit,
    own_model,
    size_limit,
)
from intarsia.models.bases import Base, base_bytes, base_in_words
from intarsia.models.bayes import Averaged, gaussian, kl_divergence
from intarsia.models.cka import Similarity, compare, linear_cka, similarity
from intarsia.models.club_cnn import ClubCNN
from intarsia.models.cmsr import Search, candidates
from intarsia.models.decompose import Chain, Chains, FunctionalBlock, Ref, decompose
from intarsia.models.groups import GROUPINGS, Groups, group_blocks
from intarsia.models.headed import Headed, headed
from intarsia.models.layers import Layer, layers_of
from intarsia.models.links import ENCODER
from intarsia.models.mixture import Differ, Mixture, mixture_of
from intarsia.models.mobilenet import MobileNetV2, mobilenet_base, mobilenet_from_tensorflow
from intarsia.models.mobilenet_v1 import MobileNetV1
from intarsia.models.mobilenet_v3 import MobileNetV3
from intarsia.models.modular import LastStep, ModularCNN, ModularLSTM
from intarsia.models.module_pool import ModulePool, ModulePoolLayout, pool_of
from intarsia.models.norms import Norms, fit_statistics, make_static, norms_at_home
from intarsia.models.pair import Pair
from intarsia.models.parts import Parts, parts_of
from intarsia.models.resnet import ResNet, resnet26
from intarsia.models.router import Form, Router
from intarsia.models.simple import CNN, MLP, Logistic, relu_first
from intarsia.models.slices import (
    add_mask,
    add_scalers,
    hidden_layers,
    last_weights,
    narrow,
    set_mask,
    set_ratios,
)
from intarsia.models.spec import Architecture, Shape, Spec
from intarsia.models.stitches import Stitch
from intarsia.models.text import CharLSTM, CharTransformer
from intarsia.models.views import PublicData, augment, labelled, nt_xent, unlabelled
from intarsia.models.weights import load_weights
from intarsia.models.zoos import NAMED

MODELS: dict[str, type[Architecture]] = {
    kind.name: kind
    for kind in (
        Logistic,
        MLP,
        CNN,
        ModularCNN,
        ModularLSTM,
        CharLSTM,
        CharTransformer,
        ResNet,
        MobileNetV2,
        ModulePoolLayout,
        MobileNetV1,
        MobileNetV3,
        ClubCNN,
    )
}
CONVERTERS = {MobileNetV2.name: mobilenet_base}
"""How weights published for an architecture become tensors under our names, and a card."""

__all__ = [
    "ADAPTERS",
    "CNN",
    "CONVERTERS",
    "ENCODER",
    "GROUPINGS",
    "MLP",
    "MODELS",
    "NAMED",
    "Adapters",
    "Architecture",
    "Assembled",
    "Assembly",
    "Averaged",
    "Base",
    "Blueprint",
    "Chain",
    "Chains",
    "CharLSTM",
    "CharTransformer",
    "ClubCNN",
    "Constraint",
    "Cost",
    "Differ",
    "Form",
    "FunctionalBlock",
    "Groups",
    "Headed",
    "LastStep",
    "Layer",
    "Logistic",
    "Mixture",
    "MobileNetV1",
    "MobileNetV2",
    "MobileNetV3",
    "ModularCNN",
    "ModularLSTM",
    "ModulePool",
    "ModulePoolLayout",
    "Norms",
    "Pair",
    "Parts",
    "PublicData",
    "Ref",
    "ResNet",
    "Router",
    "Search",
    "Shape",
    "Similarity",
    "Spec",
    "Stitch",
    "activations_limit",
    "add_adapters",
    "add_mask",
    "add_scalers",
    "assemble",
    "at_most",
    "augment",
    "base_bytes",
    "base_in_words",
    "candidates",
    "chain_cost",
    "compare",
    "decompose",
    "fit_statistics",
    "flops_limit",
    "gaussian",
    "group_blocks",
    "has_adapters",
    "headed",
    "hidden_layers",
    "kl_divergence",
    "labelled",
    "last_weights",
    "layers_of",
    "linear_cka",
    "load_weights",
    "make_static",
    "mixture_of",
    "mobilenet_from_tensorflow",
    "narrow",
    "norms_at_home",
    "nt_xent",
    "own_model",
    "parts_of",
    "pool_of",
    "relu_first",
    "remove_adapters",
    "resnet26",
    "set_mask",
    "set_ratios",
    "similarity",
    "size_limit",
    "unlabelled",
]
