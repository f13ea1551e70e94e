"""The attendants of a listener's sessions, as far as sessions do not show it."""

from typing import cast

from proxy.groups.consuming.attendant import MOST_NAMED, Attending
from proxy.groups.consuming.events import DeclaredGroup, Shadowed
from proxy.groups.groups import Groups


def test_the_log_tells_of_each_name_once_and_of_so_many_names_only() -> None:
    attending = Attending(cast(Groups, None))
    assert attending.tells_first("/", DeclaredGroup("x"))
    assert not attending.tells_first("/", DeclaredGroup("x"))
    assert attending.tells_first("/", Shadowed("x"))
    assert attending.tells_first("other", DeclaredGroup("x"))
    told = sum(attending.tells_first("/", DeclaredGroup(f"made up {n}")) for n in range(2 * MOST_NAMED))
    assert told == MOST_NAMED - 3
