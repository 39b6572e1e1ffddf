"""YAML that people wrote or received: plain values only, and no more of them than the text is long."""

from collections import Counter
from functools import cache
from itertools import chain
from typing import Any

LARGEST = 100_000
"""Characters of a document, and values that its aliases may stand for."""


def yaml_values(text: str) -> Any:
    """The values of a YAML document; what is wrong with it is a `ValueError` in one line.

    A field that is given twice is refused. An alias stands for what it refers to every time it is written: a
    few lines of aliases of aliases would be billions of values for whoever walks through them.

    >>> yaml_values("{a: 1, b: [x]}")
    {'a': 1, 'b': ['x']}
    """
    import yaml

    try:
        loader = _loader()(text)
        document = loader.get_single_node()
        if document is None:
            return None
        if _count(document, {}) > LARGEST:
            raise ValueError("its aliases stand for too much")
        return loader.construct_document(document)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except (yaml.YAMLError, ValueError, OverflowError, TypeError, AttributeError, KeyError) as error:
        # Odd dates and numbers raise errors of many types.
        raise ValueError(" ".join(str(error).split())) from error


@cache
def _loader() -> Any:
    """What reads documents, made when it is needed: no command needs YAML to show its help."""
    import yaml

    class Unique(yaml.SafeLoader):
        """Refuses a field that is given twice, of which YAML would take the last."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys = Counter(str(key.value) for key, _ in node.value)
            if twice := [key for key, times in keys.items() if times > 1]:
                raise yaml.YAMLError(f"{twice[0]} is given twice")
            return super().construct_mapping(node, deep)

    return Unique


def _count(node: Any, counted: dict[int, int]) -> int:
    """Nodes of a document, those behind an alias as often as they are referred to."""
    import yaml

    if id(node) not in counted:
        parts = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = chain(*parts) if isinstance(node, yaml.MappingNode) else parts
        counted[id(node)] = 1 + sum(_count(part, counted) for part in parts)
    return counted[id(node)]
