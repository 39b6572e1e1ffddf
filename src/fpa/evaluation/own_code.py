"""The user's own code in a plan: its identities, taken before it is first called."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fpa.engine.engine import Engine
from fpa.engine.outputs import OUTPUTS
from fpa.errors import warn
from fpa.evaluation.stored_plan import StoredPlan
from fpa.explanation.maps import Function, Maps, Quantus
from fpa.explanation.raw_maps import RawMap
from fpa.given import identity_as_given, note_calls_of, unseen
from fpa.identity import network_identity
from fpa.masking import Masking, code_of
from fpa.scores.score import Score

if TYPE_CHECKING:
    from fpa.evaluation.plan import Plan


_SHOWN = ("name", "title", "source", "higher_is_better", "images")
"""What people are shown of maskings and scores."""


def own_code(plan: "Plan") -> dict[str, Any]:
    """The identities of all code in a plan that is not fpa's, by what it is for; empty without any."""
    found: dict[str, dict[str, Any]] = {}
    known: dict[int, Any] = {}  # a twin is made from the same function
    for kind, name, value in list(_parts(plan)):
        if id(value) not in known:
            known[id(value)] = identity_as_given(value)
        if known[id(value)] is not None:
            found.setdefault(kind, {})[name] = known[id(value)]
    return found


def with_code(stored: StoredPlan, plan: "Plan", engines: Mapping[str, Engine | None]) -> StoredPlan:
    """A stored plan with the identities of the user's code in it, networks included.

    Attributes that stand in the plan anyway stand there alone, as they were before the first call.
    """
    plan_json = stored.to_json()
    code: dict[str, dict[str, Any]] = {}
    for kind, name, value in _parts(plan):
        found = plan.code.get(kind, {}).get(name)
        if found is None:
            continue
        settings = _settings(plan_json, kind, name, value)
        attributes = dict(found.get("attributes", {}))
        for key in list(settings):
            if key in attributes:
                given = attributes.pop(key)
                if given is not None:  # else the settings of all estimators decide
                    settings[key] = given
            elif "identity" in found and key not in _SHOWN:
                del settings[key]  # the user says what counts
        others = {key: each for key, each in found.items() if key != "attributes"}
        code.setdefault(kind, {})[name] = others | ({"attributes": attributes} if attributes else {})
    for name, engine in engines.items():
        network = None if engine is None else network_identity(engine.model)
        if network is not None:
            code.setdefault("networks", {})[name] = network
    return StoredPlan.from_json({**plan_json, "code": code}) if code else stored


def _settings(plan_json: dict[str, Any], kind: str, name: str, value: Any) -> dict[str, Any]:
    """What the JSON of a plan says of an object of the user's; nothing of functions."""
    if kind == "estimators" and isinstance(value, RawMap):
        found = plan_json[kind][name]["raw"]
    elif kind == "masking" and isinstance(value, Masking):
        found = plan_json[kind]
    elif kind == "maskings" and isinstance(value, Masking):
        own = plan_json.get("protocols", {}).get(name)
        found = plan_json[kind][name] if own is None else own["masking"]
    elif kind == "scores" and isinstance(value, Score):
        found = plan_json[kind][name]
    else:
        found = {}
    return found  # type: ignore[no-any-return]


def note_calls(plan: "Plan") -> None:
    """What calls have changed since the plan was made is their work: the user's code is the same."""
    for _, _, value in _parts(plan):
        note_calls_of(value)


def warn_of_unseen(plan: StoredPlan) -> None:
    """Say it, before any work, where a plan has code that could not be compared with that of another run."""
    for name, reason in unseen(plan.code).items():
        remedy = "write it into a file, or give its class a method identity()"
        warn(f"what is stored cannot be continued with {name} ({reason}): {remedy}")


def _parts(plan: "Plan") -> Iterator[tuple[str, str, Any]]:
    """All that may be the user's: what it is for, its name there, and the function or object itself."""
    for name, estimator in plan.estimators.items():
        if not isinstance(estimator.raw, Maps):  # arrays, which the plan knows by their values
            yield "estimators", name, _of_raw_map(estimator.raw)
    yield "masking", "masking", code_of(plan.masking)
    for name, protocol in plan.protocols.items():
        yield "maskings", name, code_of(protocol.masking)
    for score in plan.scores:
        yield "scores", score.name, score
    for name in dict.fromkeys([*plan.followed, plan.maps_of]):
        yield "outputs", name, OUTPUTS[name].function


def _of_raw_map(raw_map: RawMap) -> Any:
    # Quantus' function is called with these arguments: they determine its maps too.
    whole = isinstance(raw_map, Quantus) and raw_map.arguments
    return raw_map.function if isinstance(raw_map, Function) and not whole else raw_map
