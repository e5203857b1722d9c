"""Registries: what comes with Intarsia, by name, and what other packages and the user's own files add to it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from intarsia.core.errors import SettingsError, warn

T = TypeVar("T")
REGISTRIES: dict[str, Registry[Any]] = {}
"""Every registry, by the word for many of what is in it."""


class PluginError(SettingsError):
    """A plug-in that cannot be used: it does not import, is of the wrong kind, or its name is taken."""


class Registry(MutableMapping[str, T], Generic[T]):
    """What settings can name: the box, files of the user's own, and entry points of other packages.

    Packages are looked for once a name is not in the box, and imported once theirs is used. Names alone (`in`, a loop)
    import nothing.
    """

    def __init__(self, word: str, kind: type, box: Iterable[T] = (), *, objects: bool = False) -> None:
        self.group = f"intarsia.{word}"
        self._word, self._kind, self._objects = word, kind, objects
        self._box: dict[str, T] = {_name(value): value for value in box}
        self._added: dict[str, tuple[T, str]] = {}
        self._loaded: dict[EntryPoint, T] = {}
        REGISTRIES[word] = self

    def __getitem__(self, name: str) -> T:
        if name in self._box:
            return self._box[name]
        if name in self._added:
            return self._added[name][0]
        found = self._found().get(name)
        if not found:
            raise KeyError(name)
        return self._load(name, found)

    def __contains__(self, name: object) -> bool:
        return name in self._box or name in self._added or name in self._found()

    def __setitem__(self, name: str, value: T) -> None:
        self._box[name] = value

    def __delitem__(self, name: str) -> None:
        del self._box[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._box, **self._added, **self._found()})

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def is_plugin(self, name: str) -> bool:
        """Return whether a name stands for what did not come with Intarsia."""
        return name not in self._box and name in self

    @property
    def plugins(self) -> list[str]:
        """The names that did not come with Intarsia."""
        return sorted({*self._added, *self._found()} - self._box.keys())

    def fits(self, value: object) -> bool:
        """Return whether a value is of the kind that is registered here."""
        if self._objects:
            return isinstance(value, self._kind)
        return isinstance(value, type) and issubclass(value, self._kind)

    def has(self, value: object) -> bool:
        """Return whether just this came with Intarsia."""
        return self._box.get(_name(value)) is value

    def add(self, value: T, origin: str) -> None:
        """Add what a file of the user's own holds; the same file may come again, changed."""
        name = _name(value)
        taken = "Intarsia" if name in self._box else ""
        if name in self._added and self._added[name][1] != origin:
            taken = self._added[name][1]
        if taken:
            raise PluginError(f"{origin}: {self._word} has a '{name}' of {taken}: give yours another name")
        self._added[name] = value, origin

    def troubles(self) -> Iterator[str]:
        """Say what is wrong with entry points that can be seen without importing them: names that are taken."""
        for name, found in self._found().items():
            if name in self._box or name in self._added:
                for point in found:
                    yield f"{_place(point)}: the name '{name}' is taken, so that it is never used: it needs another"

    def _found(self) -> dict[str, tuple[EntryPoint, ...]]:
        return _entry_points(self.group, tuple(sys.path))

    def _load(self, name: str, found: tuple[EntryPoint, ...]) -> T:
        if len(found) > 1:
            both = " and ".join(map(_place, found))
            raise PluginError(f"{self._word}: there are two of the name '{name}': {both}; uninstall one")
        (point,) = found
        if point not in self._loaded:
            self._loaded[point] = self._checked(point, _imported(point))
        return self._loaded[point]

    def _checked(self, point: EntryPoint, value: Any) -> T:
        if not self.fits(value):
            what = "an object" if self._objects else "a class"
            kind = f"{self._kind.__module__}.{self._kind.__qualname__}"
            raise PluginError(f"{_place(point)}: {point.value} is not {what} of {kind}")
        if _name(value) != point.name:
            raise PluginError(
                f"{_place(point)}: {point.value} calls itself '{_name(value)}': give both one name"
            )
        return value  # type: ignore[no-any-return]


def usable(kinds: Mapping[str, T]) -> dict[str, T]:
    """Return all that can be used of what there is, by name; warn of plug-ins that cannot."""
    found = {}
    for name in kinds:
        try:
            found[name] = kinds[name]
        except PluginError as error:
            warn(str(error))
    return found


def adopt(values: Iterable[object], origin: str) -> list[str]:
    """Register whatever of a file's values belongs into a registry; return the names."""
    found = [(registry, value) for value in values for registry in _homes(value)]
    for registry, value in found:
        registry.add(value, origin)
    return [_name(value) for _, value in found]


def _homes(value: object) -> list[Registry[Any]]:
    named = "name" in vars(value) if isinstance(value, type) else True
    return [r for r in REGISTRIES.values() if named and r.fits(value) and not r.has(value)]


def _name(value: Any) -> str:
    """Return the name by which settings know a class or a data set."""
    return str(getattr(value, "name", ""))


def _imported(point: EntryPoint) -> Any:
    load: Callable[[], Any] = point.load
    try:
        return load()
    except Exception as error:
        raise PluginError(
            f"{_place(point)} cannot be imported: {type(error).__name__}: {error}; mend or uninstall the package"
        ) from error


def _place(point: EntryPoint) -> str:
    """Return whose entry point it is, and which."""
    package = point.dist.name if point.dist is not None else "unknown"
    return f"plug-in '{point.name}' of package {package} (entry point {point.group}: {point.value})"


@lru_cache(maxsize=64)
def _entry_points(group: str, path: tuple[str, ...]) -> dict[str, tuple[EntryPoint, ...]]:
    """Return the entry points of a group by name; `path` is where packages are looked for now."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=group):
        found[point.name] = (*found.get(point.name, ()), point)
    return found
