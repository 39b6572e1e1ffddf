"""Classifiers: built by name, wrapped so that they return logits, saved with a card that describes them.

Weights are data: nothing in a file is ever executed.
"""

from fpa.models.architectures import ModelName, build_model, parse_model_name
from fpa.models.hubs import Opened
from fpa.models.saved import ModelCard, load_model, open_model, read_card, save_model
from fpa.models.wrap import classifier

__all__ = [
    "ModelCard", "ModelName", "Opened", "build_model", "classifier", "load_model", "open_model",
    "parse_model_name", "read_card", "save_model",
]  # fmt: skip
