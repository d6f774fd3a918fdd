"""Flights of one route on one day, packed column by column into bytes that are used in place.

A bucket begins with how many flights it has. Columns of 8 bytes a flight follow (price, distance), then of 4 bytes (departure,
arrival, elapsed time, place in the published table), then the flight numbers with line breaks between them. Times and durations
are numbers of texts that the store keeps once. Numbers are in the byte order of the processor.
"""

from __future__ import annotations

import os
import struct
import weakref
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, repeat
from operator import itemgetter
from pathlib import Path
from typing import overload

from star.worlds.travel.tables import Flight

BETWEEN = "\n"
"""Between two flight numbers; in none of them."""
_HEAD = struct.Struct("=q")


@lru_cache(maxsize=1024)
def _layout(count: int) -> struct.Struct:
    """Of `count` flights, without their numbers."""
    return struct.Struct(f"=q{2 * count}d{4 * count}I")


def packed(numbers: Sequence[str], *columns: Sequence[float]) -> bytes:
    """A bucket. `columns` are price, distance, departure, arrival, elapsed time and place, each as long as `numbers`."""
    return _layout(len(numbers)).pack(len(numbers), *chain(*columns)) + BETWEEN.join(numbers).encode()


class Timetable(Sequence[Flight]):
    """The flights of a bucket, in published order; a row is put together when it is asked for."""

    __slots__ = ("_date", "_destination", "_distances", "_origin", "_prices", "_texts", "_times", "numbers", "places")

    def __init__(self, data: bytes, texts: Mapping[int, str], date: str, origin: str, destination: str) -> None:
        """Raises ValueError, struct.error or TypeError where `data` is no bucket."""
        (count,) = _HEAD.unpack_from(data)
        lengths, times, places, numbers = (_HEAD.size + size * count for size in (8, 16, 28, 32))
        self.numbers = data[numbers:].decode().split(BETWEEN)
        """Flight numbers."""
        if len(self.numbers) != count:
            raise ValueError(f"{len(self.numbers)} numbers of {count} flights")
        columns = memoryview(data)
        self._prices = columns[_HEAD.size : lengths].cast("d")
        self._distances = columns[lengths:times].cast("d")
        self._times = columns[times:places].cast("I")
        self.places = columns[places:numbers].cast("I")
        """Where each flight stands in the published table."""
        self._texts, self._date, self._origin, self._destination = texts, date, origin, destination

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Flight]:
        count = len(self.numbers)
        times = itemgetter(*self._times.tolist())(self._texts)
        columns = zip(
            self.numbers,
            self._prices.tolist(),
            times[:count],
            times[count : 2 * count],
            times[2 * count :],
            repeat(self._date),
            repeat(self._origin),
            repeat(self._destination),
            self._distances.tolist(),
            strict=False,
        )
        return map(tuple.__new__, repeat(Flight), columns)

    @overload
    def __getitem__(self, index: int) -> Flight: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Flight, ...]: ...

    def __getitem__(self, index: int | slice) -> Flight | tuple[Flight, ...]:
        if isinstance(index, slice):
            return tuple(self[at] for at in range(*index.indices(len(self))))
        count = len(self)
        at = range(count)[index]
        departure, arrival, elapsed = (self._texts[self._times[at + column * count]] for column in range(3))
        return Flight(
            self.numbers[at],
            self._prices[at],
            departure,
            arrival,
            elapsed,
            self._date,
            self._origin,
            self._destination,
            self._distances[at],
        )


class Buckets:
    """Buckets that lie one after another in a file, by their keys. Safe to share between threads and across fork."""

    def __init__(self, path: Path, base: int, size: int, keys: array[int], ends: array[int]) -> None:
        """`size` bytes from byte `base` of a file to its end; a bucket begins where the one before it ends.

        `keys` ascend. Raises ValueError where the file has another length.
        """
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        found = os.fstat(self._file).st_size
        if found != base + size or len(keys) != len(ends):
            raise ValueError(f"{found} bytes instead of {base + size}")
        self._keys, self._starts, self._base = keys, array("q", [0, *ends]), base

    def read(self, key: int) -> bytes | None:
        """The bytes of a bucket; None if there is none."""
        place = bisect_left(self._keys, key)
        if place == len(self._keys) or self._keys[place] != key:
            return None
        start, end = self._starts[place], self._starts[place + 1]
        return os.pread(self._file, end - start, self._base + start)
