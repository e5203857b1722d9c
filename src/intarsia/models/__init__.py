"""Networks, in plain torch, and what turns one into another."""

from intarsia.models.adapters import ADAPTERS, Adapters, add_adapters, has_adapters, remove_adapters
from intarsia.models.modular import ModularCNN, ModularLSTM
from intarsia.models.norms import Norms, norms_at_home
from intarsia.models.parts import Parts, parts_of
from intarsia.models.resnet import ResNet, resnet26
from intarsia.models.simple import CNN, MLP, Logistic
from intarsia.models.spec import Architecture, Shape, Spec
from intarsia.models.text import CharLSTM
from intarsia.models.weights import load_weights

MODELS: dict[str, type[Architecture]] = {
    kind.name: kind for kind in (Logistic, MLP, CNN, ModularCNN, ModularLSTM, CharLSTM, ResNet)
}

__all__ = [
    "ADAPTERS",
    "CNN",
    "MLP",
    "MODELS",
    "Adapters",
    "Architecture",
    "CharLSTM",
    "Logistic",
    "ModularCNN",
    "ModularLSTM",
    "Norms",
    "Parts",
    "ResNet",
    "Shape",
    "Spec",
    "add_adapters",
    "has_adapters",
    "load_weights",
    "norms_at_home",
    "parts_of",
    "remove_adapters",
    "resnet26",
]
