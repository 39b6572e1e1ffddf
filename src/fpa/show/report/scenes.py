"""Pictures of scenes whose truth is known: cues with their true effects, maps, and what is preferred."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fpa.evaluation.judged_scenes import JudgedScene, judged_scenes
from fpa.evaluation.result import Results
from fpa.evaluation.truths import SIDES
from fpa.show import summary
from fpa.show.names import estimator_names, model_name
from fpa.show.rendering import number
from fpa.show.report.pictures import heat, inline, rgb
from fpa.show.words.protocols import in_words


class Player(NamedTuple):
    """A cue, or the background, and what it does."""

    name: str
    effect: str
    sign: str
    """The class of report.css that colours it."""
    width: float
    """Of its bar, in percent of the longest one."""
    path: str
    """Its outline as an SVG path, in pixels; empty for the background."""
    x: float
    y: float
    """Where its number stands, in pixels."""


class MapPicture(NamedTuple):
    """A map and how true it is."""

    name: Markup
    source: str
    truth: str
    role: str
    """ "truer" or "worse", if it is one of the two compared."""


class Preference(NamedTuple):
    """What a protocol prefers, by A and by each curve alone."""

    protocol: str
    preferred: list[tuple[Markup, str]]
    """In the order of `SIDES`: the map, and "right", "wrong" or "" where neither is preferred."""
    error: str
    """Share of all pairs of this scene in which A prefers the worse map."""


class Picture(NamedTuple):
    """A scene for one model."""

    model: str
    source: str
    says: str
    players: list[Player]
    maps: list[MapPicture]
    truer: Markup
    worse: Markup
    preferences: list[Preference]


class Scene(NamedTuple):
    """A scene for several models."""

    number: int
    height: int
    width: int
    pictures: list[Picture]


def scenes(results: Results) -> list[Scene]:
    """The scenes to be shown, for the two models that show what FPA changes, or for all."""
    shown = summary.compared(results) or [*results.models][:2]
    found = judged_scenes({name: results.models[name] for name in shown})
    drawn = []
    for index, by_model in found.items():
        height, width = next(iter(by_model.values())).image.shape[1:]
        pictures = [_picture(results, name, scene) for name, scene in by_model.items()]
        drawn.append(Scene(index, height, width, pictures))
    return drawn


def _picture(results: Results, name: str, scene: JudgedScene) -> Picture:
    names = {key: Markup(text) for key, text in estimator_names(results, style="html").items()}
    classes = results.classes
    right = "right" if scene.label == scene.target else "wrong"
    judged = "" if scene.label < 0 else f", which is {right}"
    roles = {scene.truer: "truer", scene.worse: "worse"}
    return Picture(
        model=model_name(name),
        source=inline(rgb(scene.image)),
        says=f"{classes[scene.target]}{judged}",
        players=_players(scene),
        maps=[
            MapPicture(names[key], inline(heat(values)), number(scene.truths[key], 2), roles.get(key, ""))
            for key, values in scene.maps.items()
        ],
        truer=names[scene.truer],
        worse=names[scene.worse],
        preferences=_preferences(results, scene, names),
    )


def _preferences(results: Results, scene: JudgedScene, names: Mapping[str, Markup]) -> list[Preference]:
    protocols = results.first.by_protocol
    found = []
    for protocol, sides in scene.preferred.items():
        cells = []
        for side in SIDES:
            chosen = sides[side]
            word = "" if chosen is None else "right" if chosen == scene.truer else "wrong"
            cells.append((Markup("neither") if chosen is None else names[chosen], word))
        about = protocols[protocol]
        error = f"{number(100 * scene.errors[protocol], 0)} %"
        found.append(Preference(in_words(about.features, str(about.masking["name"])), cells, error))
    return found


def _players(scene: JudgedScene) -> list[Player]:
    """The cues that are there, numbered from 1, and the background."""
    there = [int(cue) for cue in np.unique(scene.regions) if cue >= 0]
    longest = float(np.abs(scene.effects).max()) or 1.0
    # Two digits of the largest: a model that hardly reacts has tiny effects.
    digits = max(2, 1 - math.floor(math.log10(longest)))
    players = []
    for place, cue in enumerate([*there, len(scene.effects) - 1]):
        inside = scene.regions == cue
        effect = float(scene.effects[cue])
        rows, columns = np.nonzero(inside)
        players.append(
            Player(
                name=f"cue {place + 1}" if place < len(there) else "background",
                effect=number(effect, digits, sign=True),
                sign="for" if effect >= 0 else "against",
                width=100 * abs(effect) / longest,
                path=_outline(inside),
                x=_beside(columns, scene.regions.shape[1])[0],
                y=_beside(rows, scene.regions.shape[0])[1],
            )
        )
    return players


def _beside(places: NDArray[np.intp], side: int) -> tuple[float, float]:
    """Where the number of a cue stands along a side: over its middle, inside; and above it, else below."""
    if not places.size:
        return 0.0, 0.0
    letter = side / 12
    middle = min(max(float(places.mean()) + 0.5, 2 * letter), side - 2 * letter)
    above = float(places.min()) - 0.6 * letter
    return middle, above if above > 0.6 * letter else float(places.max()) + 1 + 0.6 * letter


def _outline(inside: NDArray[np.bool_]) -> str:
    """The edges between the pixels of a region and the others, as one SVG path."""
    padded = np.pad(inside, 1)
    upright = padded[1:-1, 1:] != padded[1:-1, :-1]
    level = padded[1:, 1:-1] != padded[:-1, 1:-1]
    steps = [f"M{x} {y}v1" for y, x in np.argwhere(upright)]
    steps += [f"M{x} {y}h1" for y, x in np.argwhere(level)]
    return "".join(steps)
