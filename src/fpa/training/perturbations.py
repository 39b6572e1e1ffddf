"""The perturbation that a fine-tuning masks with: the user's own, or the usual one for the images."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import nn

from fpa.errors import InputError, unknown
from fpa.masking import MaskingLike, get_masking
from fpa.training.augment import FPA, Cell
from fpa.training.settings import FPASettings, suggested_fpa
from fpa.training.tokens import DropTokens
from fpa.training.tuning_images import TuningImages

Perturbation = FPA | Cell | DropTokens

Given = Perturbation | FPASettings | Mapping[str, Any] | None
"""A perturbation, its settings, or those of them that differ from the usual ones."""


def with_masking(fpa: Given, masking: MaskingLike | None) -> Given:
    """The perturbation with the masking that was given beside it."""
    if masking is None:
        return fpa
    given = asdict(fpa) if isinstance(fpa, FPASettings) else fpa
    if isinstance(given, Perturbation) or (given is not None and "masking" in given):
        raise InputError("fpa has a masking already: leave out masking, or give it there")
    return {**(given or {}), "masking": masking}


def perturbation_of(fpa: Given, images: TuningImages, own_predictions: bool) -> Perturbation:
    """The perturbation: the user's own, or the usual one for the size of the images with what differs."""
    if isinstance(fpa, Perturbation):
        return fpa
    _, height, width = images.shape
    usual = suggested_fpa(height, width, "model" if own_predictions else "labels")
    given = asdict(fpa) if isinstance(fpa, FPASettings) else dict(fpa or {})
    known = (*asdict(usual), "masking")
    for name in given:
        if name not in known:
            raise unknown("setting of fpa", str(name), known)
    if get_masking(given.get("masking")).selects:
        return _dropping(given, usual.p)
    return FPA(
        p=given.get("p", usual.p),
        p1_max=given.get("p1_max", usual.p1_max),
        p2=given.get("p2", usual.p2),
        s_max=given.get("s_max", usual.s_max),
        squares=given.get("squares", usual.squares),
        masking=given.get("masking"),
    )


def check_fits(augment: Perturbation, network: nn.Module, images: TuningImages) -> None:
    """Refuse a perturbation that the images, or the model, do not allow."""
    if isinstance(augment, DropTokens):
        augment.check_model(network, images.first)
    else:
        augment.check(images.first)


def _dropping(given: Mapping[str, Any], p: float) -> DropTokens:
    """FPA by dropping, with what was given in place of the default."""
    others = [name for name in ("p2", "s_max", "squares") if name in given]
    if others:
        raise InputError(f"{others[0]} is for masks of pixels: with the masking drop, fpa has p and p1_max")
    p = given.get("p", p)
    return DropTokens(p, given["p1_max"]) if "p1_max" in given else DropTokens(p)
