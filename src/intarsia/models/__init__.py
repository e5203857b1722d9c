"""Networks, in plain torch, and what turns one into another."""

from intarsia.models.adapters import ADAPTERS, Adapters, add_adapters, has_adapters, remove_adapters
from intarsia.models.bases import Base, base_bytes, base_in_words
from intarsia.models.links import ENCODER
from intarsia.models.mixture import Differ, Mixture, mixture_of
from intarsia.models.mobilenet import MobileNetV2, mobilenet_base, mobilenet_from_tensorflow
from intarsia.models.modular import ModularCNN, ModularLSTM
from intarsia.models.module_pool import ModulePool, ModulePoolLayout, pool_of
from intarsia.models.norms import Norms, norms_at_home
from intarsia.models.parts import Parts, parts_of
from intarsia.models.resnet import ResNet, resnet26
from intarsia.models.router import Form, Router
from intarsia.models.simple import CNN, MLP, Logistic
from intarsia.models.spec import Architecture, Shape, Spec
from intarsia.models.text import CharLSTM, CharTransformer
from intarsia.models.weights import load_weights

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
    )
}
CONVERTERS = {MobileNetV2.name: mobilenet_base}
"""How weights published for an architecture become tensors under our names, and a card."""

__all__ = [
    "ADAPTERS",
    "CNN",
    "CONVERTERS",
    "ENCODER",
    "MLP",
    "MODELS",
    "Adapters",
    "Architecture",
    "Base",
    "CharLSTM",
    "CharTransformer",
    "Differ",
    "Form",
    "Logistic",
    "Mixture",
    "MobileNetV2",
    "ModularCNN",
    "ModularLSTM",
    "ModulePool",
    "ModulePoolLayout",
    "Norms",
    "Parts",
    "ResNet",
    "Router",
    "Shape",
    "Spec",
    "add_adapters",
    "base_bytes",
    "base_in_words",
    "has_adapters",
    "load_weights",
    "mixture_of",
    "mobilenet_from_tensorflow",
    "norms_at_home",
    "parts_of",
    "pool_of",
    "remove_adapters",
    "resnet26",
]
