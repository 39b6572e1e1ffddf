"""What tables are made of, whatever they are written in."""

from typing import NamedTuple


class Cell(NamedTuple):
    """What a table says in one place, and whether it is the best of its column."""

    value: str
    half: str = ""
    """Half of its interval, if it has one."""
    best: bool = False
    """Significantly better than every other explanation: bold."""
    tied: bool = False
    """The best, or not to be ordered against it, where no one is alone: marked with an equals sign."""
    ends: str = ""
    """Both ends of its interval, of a share, where it is not symmetric."""

    @property
    def text(self) -> str:
        """The value with its interval."""
        if self.ends:
            return f"{self.value} ({self.ends})"
        return f"{self.value} ± {self.half}" if self.half else self.value

    @property
    def marked(self) -> str:
        """The text with its mark."""
        return f"{self.text} =" if self.tied else self.text


class Column(NamedTuple):
    """A column of a table, whatever the table is written in."""

    title: str
    cells: dict[str, Cell]
    """By estimator."""
    facts: dict[str, str]
    """What is above the estimators: the accuracy, ..."""
    model: str | None = None
    """None where it is of the paper, or of no model."""


class Sheet(NamedTuple):
    """A table with its heading."""

    heading: str
    columns: list[Column]
    first: str = "estimator"
    """What the first column names."""


Line = tuple[str, str, list[Cell]]
