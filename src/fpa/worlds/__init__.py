"""Images that can be made again with a cue left out, so that the true effect of every cue is known.

A *world* draws *scenes*: a background and cues on it, each of parts. It renders a scene with any of them, and
is a data set like any other. `cues` comes with fpa; `pets` needs photos.
"""

from fpa.worlds.cues import Cues
from fpa.worlds.pets import Pets
from fpa.worlds.scenes import Scenes
from fpa.worlds.world import World, check_world

__all__ = ["Cues", "Pets", "Scenes", "World", "check_world"]
