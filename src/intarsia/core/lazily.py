"""Lists and mappings whose values are made when they are asked for, and not kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Generic, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")


class Listed(Sequence[V], Generic[K, V]):
    """What a function makes of each key, in order."""

    def __init__(self, keys: Sequence[K], make: Callable[[K], V]) -> None:
        self._keys = keys
        self._make = make

    @overload
    def __getitem__(self, place: int) -> V: ...

    @overload
    def __getitem__(self, place: slice) -> Listed[K, V]: ...

    def __getitem__(self, place: int | slice) -> V | Listed[K, V]:
        if isinstance(place, slice):
            return Listed(self._keys[place], self._make)
        return self._make(self._keys[place])

    def __iter__(self) -> Iterator[V]:
        return map(self._make, self._keys)

    def __len__(self) -> int:
        return len(self._keys)


class Derived(Mapping[K, V]):
    """What a function makes of each key of a collection, by key."""

    def __init__(self, keys: Collection[K], make: Callable[[K], V]) -> None:
        self._keys = keys
        self._make = make

    def __getitem__(self, key: K) -> V:
        if key not in self._keys:
            raise KeyError(key)
        return self._make(key)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[K]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
