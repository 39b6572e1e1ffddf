"""For whom notes are put into words, and the words that several phrases share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Phrase = Callable[..., str]
"""Puts the values of a note, which it takes by name, into words for a `Reader`."""


@dataclass(frozen=True)
class Reader:
    """For whom notes are put into words."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Estimators as they are shown, by their names in the plan."""
    at_shell: bool = False
    """Whether options are typed in a shell."""

    def name(self, estimator: str) -> str:
        """An estimator as it is shown."""
        return self.names.get(estimator, estimator)

    def option(self, name: str) -> str:
        """An option the way it is given.

        >>> Reader().option("class_index"), Reader(at_shell=True).option("class_index")
        ('class_index', '--class_index')
        """
        return f"--{name}" if self.at_shell else name

    def setting(self, name: str, value: str) -> str:
        """An option with its value, the way it is given.

        >>> Reader().setting("features", "1/8"), Reader(at_shell=True).setting("features", "1/8")
        ('features="1/8"', '--features 1/8')
        """
        return f"--{name} {value}" if self.at_shell else f'{name}="{value}"'


def as_sentence(clause: str) -> str:
    """A clause with a capital and a full stop."""
    return f"{clause[:1].upper()}{clause[1:]}."


def output_name(output: str) -> str:
    """An output as people call it.

    >>> output_name("centred"), output_name("log_odds")
    ('centred logit', 'log odds')
    """
    return {"centred": "centred logit", "logit": "raw logit"}.get(output, output.replace("_", " "))


def short_output_name(output: str) -> str:
    """The last word of that.

    >>> short_output_name("centred"), short_output_name("log_odds")
    ('logit', 'log odds')
    """
    return "logit" if output in ("centred", "logit") else output_name(output)


def listed(parts: Sequence[str]) -> str:
    """Things one after another, with "and" before the last.

    >>> listed(["mean", "blur", "uniform"]), listed(["mean"])
    ('mean, blur and uniform', 'mean')
    """
    return " and ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)


def first_of(numbers: Sequence[int], count: int) -> str:
    """The first few of `count` numbers.

    >>> first_of([3, 5], 2), first_of([3, 5], 9)
    ('3, 5', '3, 5, ...')
    """
    return ", ".join(map(str, numbers)) + ", ..." * (count > len(numbers))
