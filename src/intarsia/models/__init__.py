"""Networks, in plain torch, and what turns one into another."""

from intarsia.models.modular import ModularCNN, ModularLSTM
from intarsia.models.parts import Parts, parts_of
from intarsia.models.simple import CNN, MLP, Logistic
from intarsia.models.spec import Architecture, Shape, Spec
from intarsia.models.text import CharLSTM

MODELS: dict[str, type[Architecture]] = {
    kind.name: kind for kind in (Logistic, MLP, CNN, ModularCNN, ModularLSTM, CharLSTM)
}

__all__ = [
    "CNN",
    "MLP",
    "MODELS",
    "Architecture",
    "CharLSTM",
    "Logistic",
    "ModularCNN",
    "ModularLSTM",
    "Parts",
    "Shape",
    "Spec",
    "parts_of",
]
