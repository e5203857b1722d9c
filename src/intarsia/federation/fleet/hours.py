"""Hours of the day in which a device can be reached: windows such as 22:00-06:00."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from intarsia.core import SettingsError

DAY = 86400.0
WINDOW = re.compile(r"(\d{1,2})(?::(\d{2}))?-(\d{1,2})(?::(\d{2}))?")


@dataclass(frozen=True)
class Hours:
    """Windows of a day, in seconds after midnight (none: always); one may end on the next day."""

    windows: tuple[tuple[float, float], ...] = ()
    shift: float = 0.0
    """Seconds by which this device's day is later than the clock's."""

    @classmethod
    def of(cls, text: str, shift: float = 0.0, where: str = "fleet.available") -> Hours:
        """Read windows: `22:00-06:00`, or several with a space between them."""
        return cls(tuple(_window(word, where) for word in text.replace(",", " ").split()), shift)

    def open_at(self, time: float) -> bool:
        """Return whether the device can be reached."""
        return not self.windows or any(self._into(time, window) is not None for window in self.windows)

    def closes(self, time: float) -> float:
        """Return when the device can no longer be reached, which it is now (one that always can: never)."""
        end = time
        while end < time + DAY and (later := self._end(end)) > end:  # windows may follow each other
            end = later
        return end if self.windows and end < time + DAY else math.inf

    def _end(self, time: float) -> float:
        """Return when the last of the windows ends that are open now."""
        ends = [time + _length(w) - into for w in self.windows if (into := self._into(time, w)) is not None]
        return max(ends, default=time)

    def opens(self, time: float) -> float:
        """Return when the device can be reached next; now, if it can."""
        if self.open_at(time):
            return time
        return min(time + (start + self.shift - time) % DAY for start, _ in self.windows)

    def _into(self, time: float, window: tuple[float, float]) -> float | None:
        """Return how long a window has been open (None: it is closed)."""
        into = (time - self.shift - window[0]) % DAY
        return into if into < _length(window) else None


def _length(window: tuple[float, float]) -> float:
    return (window[1] - window[0]) % DAY or DAY


def _window(word: str, where: str) -> tuple[float, float]:
    found = WINDOW.fullmatch(word)
    if found is None:
        raise SettingsError(f"{where}: '{word}' is no window of the day: write it as 22:00-06:00")
    start, start_minute, end, end_minute = (int(group or 0) for group in found.groups())
    if max(start, end) > 24 or max(start_minute, end_minute) > 59:
        raise SettingsError(f"{where}: '{word}' names a time that no day has: write it as 22:00-06:00")
    return start * 3600.0 + start_minute * 60, end * 3600.0 + end_minute * 60
