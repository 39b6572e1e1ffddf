"""Shapley effects from a table of values for every setting of the players, and from sampled orders."""

from functools import lru_cache
from itertools import combinations
from math import factorial

import torch
from torch import Tensor


def shapley_effects(table: Tensor) -> Tensor:
    r"""The effects of p players, from what every setting of them gives: [..., 2^p, O] -> float64 [..., p, O].

    Player i is there in setting S if bit i of its number is set. Its effect is what it adds, on average over
    all orders in which players may come: $\sum_S w(S) (v(S \cup i) - v(S))$. The effects of all players add
    up to the whole: $v$ with all minus $v$ with none.

    >>> table = torch.tensor([[0.0], [1.0], [0.0], [3.0]])  # 1 with the first alone, 3 with both
    >>> shapley_effects(table)[:, 0].tolist()
    [2.0, 1.0]
    """
    players = _players(table)
    return torch.einsum("ps,...so->...po", _shapley_weights(players).to(table.device), table.double())


def one_at_a_time(table: Tensor) -> Tensor:
    """How far the value falls when one player leaves while all others stay, [..., 2^p, O] -> [..., p, O].

    >>> one_at_a_time(torch.tensor([[0.0], [1.0], [0.0], [3.0]]))[:, 0].tolist()
    [3.0, 2.0]
    """
    full = table.shape[-2] - 1
    without = [full ^ (1 << player) for player in range(_players(table))]
    return table[..., full:, :].double() - table[..., without, :].double()


def interaction_share(table: Tensor) -> Tensor:
    """How much of the variance over all settings no sum of single effects explains.

    [..., 2^p, O] -> [..., O]. The values are split into parts that vary with one player, with two, ... (a
    Walsh transform, whose coefficients' squares add up to the variance); the share is that of two and more.
    NaN where nothing varies.

    >>> interaction_share(torch.tensor([[0.0], [1.0], [2.0], [3.0]])).item()  # a sum
    0.0
    >>> interaction_share(torch.tensor([[0.0], [1.0], [1.0], [0.0]])).item()  # XOR
    1.0
    """
    signs, sizes = _walsh(_players(table))
    coefficients = torch.einsum("cs,...so->...co", signs.to(table.device), table.double())
    # By Parseval, squares of coefficients are variances; the first one, of no player, is the mean.
    power = coefficients.square() / table.shape[-2] ** 2
    several = power[..., (sizes >= 2).to(table.device), :].sum(-2)
    varying = power[..., (sizes >= 1).to(table.device), :].sum(-2)
    # Rounding of large equal values must not pass for variance.
    nothing = varying <= 1e-24 * table.double().square().mean(-2)
    return (several / varying).masked_fill(nothing, torch.nan)


def _players(table: Tensor) -> int:
    return table.shape[-2].bit_length() - 1


@lru_cache(maxsize=16)
def _shapley_weights(players: int) -> Tensor:
    """[p, 2^p]: the factor of every setting's value in each player's effect."""
    weights = torch.zeros(players, 1 << players, dtype=torch.float64)
    for player in range(players):
        others = [other for other in range(players) if other != player]
        for size in range(players):
            weight = factorial(size) * factorial(players - size - 1) / factorial(players)
            for chosen in combinations(others, size):
                setting = sum(1 << other for other in chosen)
                weights[player, setting | 1 << player] = weight
                weights[player, setting] = -weight
    return weights


@lru_cache(maxsize=16)
def _walsh(players: int) -> tuple[Tensor, Tensor]:
    """Signs [2^p, 2^p] of every setting in every coefficient, and how many players a coefficient is of."""
    numbers = torch.arange(1 << players)
    bits = numbers[:, None] >> torch.arange(players) & 1
    common = (bits[:, None] & bits).sum(2)
    return (1 - 2 * (common % 2)).double(), bits.sum(1)
