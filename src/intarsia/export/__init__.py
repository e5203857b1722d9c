"""Models to take home: plain files that run without Intarsia, and predictions with them."""

from intarsia.export.card import attributes
from intarsia.export.each import predict_each
from intarsia.export.graph import ExportError
from intarsia.export.inputs import Inputs
from intarsia.export.package import Check, Package
from intarsia.export.predictions import Predictions
from intarsia.export.predictor import Predictor, Samples, is_export
from intarsia.export.write import FORMATS, Exported, export, places_for

__all__ = [
    "FORMATS",
    "Check",
    "ExportError",
    "Exported",
    "Inputs",
    "Package",
    "Predictions",
    "Predictor",
    "Samples",
    "attributes",
    "export",
    "is_export",
    "places_for",
    "predict_each",
]
