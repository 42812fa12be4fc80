"""The shared state at a boundary of a simulated run: elected, and fetched as `refresh` fetches it.

Hashing, comparing and replacing are done by _state.py. Only the parts of master and engine are
written anew here: the election, and `Offered` in the place of `_C.StateFetch`, which copies from
another member's memory instead of fetching over a link.
"""

from __future__ import annotations

import ctypes
from collections.abc import MutableMapping, Sequence
from typing import Any

from . import _extension
from ._simulation_members import Member
from ._state import Exchange, Snapshot, Wanted


class Offered:
    """A StateFetch over what the members of a run offer, by their ids, while they wait."""

    def __init__(self, offers: dict[str, Snapshot]) -> None:
        """Takes the run's offers, which change from boundary to boundary."""
        self.bytes_received = 0
        self._offers = offers
        self._here: dict[bytes, bytes] = {}
        self._before: list[tuple[int, bytes]] = []  # address, what it held

    def run(self, root: bytes, sources: Sequence[str], items: Sequence[Wanted]) -> bool:
        """Takes the items; never fails."""
        offer = self._offers[sources[0]]
        assert offer.digest == root
        for item, digest, _ in items:
            self._here[digest] = ctypes.string_at(*offer.items[item])
            self.bytes_received += len(self._here[digest])
        return True

    def at(self, digest: bytes) -> bytes:
        """What was taken."""
        return self._here[digest]

    def replace(self, targets: list[tuple[bytes, int, int]]) -> None:
        """Writes what was taken into the memory of the state."""
        for digest, address, size in targets:
            self._before.append((address, ctypes.string_at(address, size)))
            ctypes.memmove(address, self._here[digest], size)

    def take_back(self) -> None:
        """Undoes `replace`."""
        while self._before:
            address, held = self._before.pop()
            ctypes.memmove(address, held, len(held))

    def clear(self) -> None:
        """The state is replaced."""
        self._here.clear()
        self._before.clear()


def exchange_of(state: MutableMapping[str, Any], offers: dict[str, Snapshot]) -> Exchange:
    """The exchange of the state with which a member comes to a boundary.

    Raises:
        ValueError: It cannot be shared.
    """
    return Exchange(state, _extension.library().sha256, Offered(offers))


def equalise(
    members: list[Member], door: list[Member], offers: dict[str, Snapshot], *, founding: bool
) -> dict[Member, int]:
    """Makes all states equal to the elected one, over `offers`; bytes that each member got.

    Source: docs/architecture/rules.md: of the states of the members the most popular one wins; at
    a founding of those with the highest revision.

    Raises:
        ValueError: Names, dtypes or shapes differ, or some members share no state.
    """
    everybody = [*members, *door]
    shared = {m: m.shared for m in everybody if m.shared is not None}
    offers.clear()
    offers.update({m.peer: exchange.snapshot() for m, exchange in shared.items()})
    voters = [m.peer for m in members if m in shared]
    if not voters:
        return {}
    if len(shared) < len(everybody):
        raise ValueError("state=None: the members of this run share a state")
    if founding:
        highest = max(offers[peer].revision for peer in voters)
        voters = [peer for peer in voters if offers[peer].revision == highest]
    roots = [offers[peer].digest for peer in voters]
    source = max(voters, key=lambda peer: roots.count(offers[peer].digest))
    root = offers[source].digest
    for member, exchange in shared.items():
        if offers[member.peer].digest != root:
            exchange.fetch(root, [source], lambda: True)
    return {member: exchange.bytes_received for member, exchange in shared.items()}
