"""The true effects of cues on a model: what it says of a scene in every setting of its cues and background.

The players are the cues that are there and the background. A cue that is absent is left out of the scene; an
absent background is one that was drawn again: the mean over several, the same ones in every setting.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fpa.errors import InputError, at_least
from fpa.seeds import Stream, derive, uniform_by_index
from fpa.worlds.scenes import Scenes
from fpa.worlds.shapley import interaction_share, one_at_a_time, shapley_effects

Run = Callable[[Tensor, Callable[[int, int], Tensor]], Tensor]
"""(scene [M] of every row, rows) -> outputs [M, O]; rows(start, stop) are the images, uint8 [., C, H, W]."""

EXACT = 8
"""Players of a scene up to which all settings are tried; beyond, orders of them are sampled."""
REDRAWS = 8
"""Backgrounds that stand for an absent one."""
ORDERS = 256
"""That are sampled, where there are too many players."""


@dataclass(frozen=True, eq=False)
class Effects:
    """True effects [N, cues + 1, O] on each of the outputs; the background is the last player.

    A cue that is not in the scene is no player, and has the effect 0.
    """

    players: Tensor
    """bool [N, cues + 1]."""
    shapley: Tensor
    alone: Tensor
    """How far the output falls when the player is left out of the whole scene (one at a time)."""
    halves: Tensor
    """[2, N, cues + 1, O]: Shapley effects by each half of the redrawn backgrounds alone."""
    error: Tensor
    """Standard errors of the Shapley effects where orders were sampled; 0 where they are exact."""
    interaction: Tensor
    """[N, O]: see `interaction_share`; NaN where orders were sampled."""

    def ceiling(self) -> Tensor:
        """The cosine of the two halves' effects, [N, O]: no map can be expected to be truer than this."""
        first, second = self.halves
        return torch.nn.functional.cosine_similarity(first, second, dim=1)

    def noise(self) -> Tensor:
        r"""How far the truth of a map may be off, [N, O]: $\sqrt{(1 - c) / 2}$ with the ceiling $c$.

        That is half the distance between the directions of the halves' effects, as the standard error of a
        mean of two values is half their distance; no cosine with them moves by more.
        """
        return ((1 - self.ceiling()) / 2).clamp(min=0).sqrt()


def true_effects(scenes: Scenes, run: Run, *, redraws: int = REDRAWS, orders: int = ORDERS) -> Effects:
    """The effects of the cues and the background of every scene on what `run` gives.

    >>> from fpa.worlds import Cues
    >>> scenes = Cues().test_scenes(range(3))
    >>> def brightness(scene, rows):
    ...     return rows(0, len(scene)).double().mean((1, 2, 3))[:, None]
    >>> effects = true_effects(scenes, brightness)
    >>> effects.shapley.shape
    torch.Size([3, 7, 1])
    """
    at_least("redraws", redraws, 2)
    if redraws % 2:
        raise InputError(f"redraws must be even, as halves of them are compared, got {redraws}")
    there = scenes.cues
    players = torch.cat([there, torch.ones_like(there[:, :1])], 1)
    game = _Game(scenes, run, redraws)
    found: Effects | None = None
    # By image, not by batch: what an image's effects are must not depend on those beside it.
    few = players.sum(1) <= EXACT
    for rows, of in ((few, _exact), (~few, lambda game, rows: _sampled(game, rows, orders))):
        if rows.any():
            found = _joined(found, of(game, rows.nonzero()[:, 0]), rows.nonzero()[:, 0], players)
    assert found is not None
    return found


def part_effects(scenes: Scenes, run: Run) -> Tensor:
    """Shapley effects of the parts of each cue while everything else stays, [N, cues, parts, O].

    0 for a part that is not there.
    """
    count, cues, parts = scenes.present.shape
    if parts > EXACT:
        raise InputError(f"effects of parts are computed for at most {EXACT} parts of a cue, got {parts}")
    device = scenes.present.device
    codes = torch.arange(1 << parts, device=device)
    bits = (codes[:, None] >> torch.arange(parts, device=device) & 1).bool()
    own = _codes(scenes.present)
    possible = (codes & ~own[..., None]) == 0
    scene, cue, code = possible.nonzero().unbind(1)
    # Every row is a whole scene in which one cue has some of its parts.
    present = scenes.present[scene].clone()
    present[torch.arange(len(scene), device=device), cue] = bits[code]
    values = _Game(scenes, run, 0).values(scene, present, 0)
    table = values.new_zeros(count, cues, len(codes), values.shape[1])
    table[scene, cue, code] = values
    # A setting with parts that are not there is the one without them.
    same = (codes & own[..., None])[..., None].expand_as(table)
    return shapley_effects(table.gather(2, same)) * scenes.present[..., None]


class _Game:
    """What a model says of scenes in settings of their players."""

    def __init__(self, scenes: Scenes, run: Run, redraws: int) -> None:
        self.scenes = scenes
        self.run = run
        self.redraws = redraws

    def values(self, scene: Tensor, present: Tensor, background: int) -> Tensor:
        """Outputs float64 [M, O] of these scenes [M] with these parts [M, cues, parts]."""

        # Rendered when their turn comes: all settings of all images at once would not fit the memory.
        def rows(start: int, stop: int) -> Tensor:
            return self.scenes.render(present[start:stop], background=background, rows=scene[start:stop])

        return self.run(scene, rows).double()

    def with_cues(self, scene: Tensor, cues: Tensor, background: int) -> Tensor:
        """The same with these cues, bool [M, cues]."""
        return self.values(scene, self.scenes.present[scene] & cues[:, :, None], background)

    def redrawn(self, scene: Tensor, cues: Tensor) -> Tensor:
        """The same on each of the redrawn backgrounds, [redraws, M, O]."""
        # One background after the other: each is drawn once and serves all settings.
        numbers = range(1, self.redraws + 1)
        return torch.stack([self.with_cues(scene, cues, number) for number in numbers])


def _halves(redrawn: Tensor) -> list[Tensor]:
    """What an absent background gives: by all that were drawn again, and by each half of them."""
    half = len(redrawn) // 2
    return [redrawn.mean(0), redrawn[:half].mean(0), redrawn[half:].mean(0)]


def _codes(bits: Tensor) -> Tensor:
    """Numbers [...] whose bits these are, bool [..., p]."""
    return (bits.long() << torch.arange(bits.shape[-1], device=bits.device)).sum(-1)


def _exact(game: _Game, chosen: Tensor) -> Effects:
    """Of the scenes at these places: every setting of their players is tried."""
    there = game.scenes.cues[chosen]
    count, cues = there.shape
    # Players first: a world may have places for many cues, of which a scene has few.
    order = (~there).long().argsort(dim=1, stable=True)
    places = int(there.sum(1).max())
    slots = order[:, :places]
    codes = torch.arange(1 << places, device=there.device)
    full = (1 << there.sum(1)) - 1
    # Only what differs is rendered: a scene with two of six cues has 4 settings, not 64.
    row, code = ((codes & ~full[:, None]) == 0).nonzero().unbind(1)
    on = (code[:, None] >> torch.arange(places, device=there.device) & 1).bool()
    shown = torch.zeros(len(row), cues, dtype=torch.bool, device=there.device)
    shown.scatter_(1, slots[row], on)
    own = game.with_cues(chosen[row], shown, 0)
    redrawn = game.redrawn(chosen[row], shown)

    def tabled(absent: Tensor) -> Tensor:
        """What every setting gives, [N, 2^(places + 1), O]; the last bit is the background."""
        table = own.new_zeros(2, count, len(codes), own.shape[1])
        table[0, row, code] = absent
        table[1, row, code] = own
        # A setting with players that are not in a scene is the one without them.
        same = (codes & full[:, None])[..., None].expand_as(table[0])
        return torch.cat([table[0].gather(1, same), table[1].gather(1, same)], 1)

    def by_cue(values: Tensor) -> Tensor:
        """Effects by slot, and of the background, to those by cue."""
        whole = values.new_zeros(count, cues + 1, values.shape[2])
        whole.scatter_(1, slots[..., None].expand(-1, -1, values.shape[2]), values[:, :-1])
        whole[:, -1] = values[:, -1]
        whole[:, :-1] *= there[..., None]
        return whole

    mean, *halves = (tabled(absent) for absent in _halves(redrawn))
    shapley = by_cue(shapley_effects(mean))
    return Effects(
        players=there,
        shapley=shapley,
        alone=by_cue(one_at_a_time(mean)),
        halves=torch.stack([by_cue(shapley_effects(half)) for half in halves]),
        error=torch.zeros_like(shapley),
        interaction=interaction_share(mean),
    )


def _sampled(game: _Game, chosen: Tensor, orders: int) -> Effects:
    """Of the scenes at these places: what players add in random orders, with the error of the mean."""
    scenes = game.scenes
    there = scenes.cues[chosen]
    count, cues = there.shape
    device = there.device
    numbers = [scenes.numbers[place] for place in chosen.tolist()]
    uniform = uniform_by_index(derive(0, Stream.ORDERS), numbers, orders * (cues + 1)).to(device)
    # Players that are not there come last, and add nothing: after k + 1 steps all is there.
    absent = torch.cat([~there, torch.zeros_like(there[:, :1])], 1)
    keys = uniform.view(count, orders, cues + 1) + absent[:, None]
    # The order of random keys is a random order; sorted twice, it says when each player comes.
    rank = keys.argsort(dim=2).argsort(dim=2)
    steps = torch.arange(cues + 2, device=device)
    setting = (rank[..., None, :] < steps[:, None]).flatten(0, 2)  # [N * orders * steps, players]
    scene = chosen.repeat_interleave(orders * (cues + 2))
    with_background = setting[:, -1]
    own = game.with_cues(scene[with_background], setting[with_background, :-1], 0)
    redrawn = game.redrawn(scene[~with_background], setting[~with_background, :-1])

    def added(values: Tensor) -> Tensor:
        """What each player adds in every order, [N, orders, cues + 1, O]."""
        whole = own.new_empty(len(setting), own.shape[1])
        whole[with_background] = own
        whole[~with_background] = values
        by_step = whole.view(count, orders, cues + 2, -1).diff(dim=2)
        return by_step.gather(2, rank[..., None].expand(-1, -1, -1, by_step.shape[3]))

    mean, *halves = (added(values) for values in _halves(redrawn))
    everything = torch.ones(count, cues, dtype=torch.bool, device=device)
    whole = game.with_cues(chosen, everything, 0)
    alone = torch.zeros_like(mean[:, 0])
    for cue in range(cues):
        without = everything.clone()
        without[:, cue] = False
        alone[:, cue] = (whole - game.with_cues(chosen, without, 0)) * there[:, cue, None]
    alone[:, -1] = whole - game.redrawn(chosen, everything).mean(0)
    return Effects(
        players=there,
        shapley=mean.mean(1),
        alone=alone,
        halves=torch.stack([half.mean(1) for half in halves]),
        error=mean.std(1) / orders**0.5,
        interaction=whole.new_full(whole.shape, torch.nan),
    )


def _joined(found: Effects | None, some: Effects, rows: Tensor, players: Tensor) -> Effects:
    """The effects of some scenes put where they belong among those of all."""

    def placed(name: str, dimension: int = 0) -> Tensor:
        values: Tensor = getattr(some, name)
        shape = list(values.shape)
        shape[dimension] = len(players)
        whole = values.new_zeros(shape) if found is None else getattr(found, name)
        return whole.index_copy(dimension, rows, values)

    return Effects(
        players=players,
        shapley=placed("shapley"),
        alone=placed("alone"),
        halves=placed("halves", 1),
        error=placed("error"),
        interaction=placed("interaction"),
    )
