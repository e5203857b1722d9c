"""Networks, in plain torch, and what turns one into another."""

from intarsia.core import Registry
from intarsia.models.adapters import ADAPTERS, Adapters, add_adapters, has_adapters, remove_adapters
from intarsia.models.architectures.club_cnn import ClubCNN
from intarsia.models.architectures.mobilenet import MobileNetV2, mobilenet_base, mobilenet_from_tensorflow
from intarsia.models.architectures.mobilenet_v1 import MobileNetV1
from intarsia.models.architectures.mobilenet_v3 import MobileNetV3
from intarsia.models.architectures.modular import LastStep, ModularCNN, ModularLSTM
from intarsia.models.architectures.resnet import ResNet, resnet26
from intarsia.models.architectures.simple import CNN, MLP, Logistic, relu_first
from intarsia.models.architectures.text import CharLSTM, CharTransformer
from intarsia.models.architectures.zoos import NAMED
from intarsia.models.bases import Base, base_bytes, base_in_words
from intarsia.models.inference import Plainable, plain_model
from intarsia.models.norms import Norms, fit_statistics, make_static, norms_at_home
from intarsia.models.parts import Layer, Parts, layers_of, parts_of
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
from intarsia.models.weights import load_weights

MODELS: Registry[type[Architecture]] = Registry(
    "models",
    Architecture,
    (
        Logistic,
        MLP,
        CNN,
        ModularCNN,
        ModularLSTM,
        CharLSTM,
        CharTransformer,
        ResNet,
        MobileNetV2,
        MobileNetV1,
        MobileNetV3,
        ClubCNN,
    ),
)
CONVERTERS = {MobileNetV2.name: mobilenet_base}
"""How weights published for an architecture become tensors under our names, and a card."""

__all__ = [
    "ADAPTERS",
    "CNN",
    "CONVERTERS",
    "MLP",
    "MODELS",
    "NAMED",
    "Adapters",
    "Architecture",
    "Base",
    "CharLSTM",
    "CharTransformer",
    "ClubCNN",
    "LastStep",
    "Layer",
    "Logistic",
    "MobileNetV1",
    "MobileNetV2",
    "MobileNetV3",
    "ModularCNN",
    "ModularLSTM",
    "Norms",
    "Parts",
    "Plainable",
    "ResNet",
    "Shape",
    "Spec",
    "add_adapters",
    "add_mask",
    "add_scalers",
    "base_bytes",
    "base_in_words",
    "fit_statistics",
    "has_adapters",
    "hidden_layers",
    "last_weights",
    "layers_of",
    "load_weights",
    "make_static",
    "mobilenet_base",
    "mobilenet_from_tensorflow",
    "narrow",
    "norms_at_home",
    "parts_of",
    "plain_model",
    "relu_first",
    "remove_adapters",
    "resnet26",
    "set_mask",
    "set_ratios",
]
