"""The fleet by a broker's list of connections, whatever is in that list."""

from typing import Any

from proxy.http.admin.console.fleet import inventory


def connection(sidecar: str | None, host: str = "10.0.0.7", user: str = "orders") -> dict[str, Any]:
    properties = {"ringproxy_id": sidecar, "ringproxy_version": "0.1.0", "ringproxy_ring_format": "1"}
    return {"peer_host": host, "user": user, "client_properties": properties if sidecar else {}}


def test_connections_are_counted_by_sidecar_and_the_others_by_user() -> None:
    found = inventory(
        [connection("b", "10.0.0.9"), connection("a"), connection("a", user="billing"), connection(None)], "a"
    )
    assert [(each["id"], each["own"], each["host"], each["connections"]) for each in found["sidecars"]] == [
        ("a", True, "10.0.0.7", 2),
        ("b", False, "10.0.0.9", 1),
    ]
    assert (found["sidecars_of"], found["connections"]) == (2, 4)
    assert found["sidecars"][0]["version"] == "0.1.0"
    assert found["others"] == [{"user": "orders", "connections": 1}]


def test_items_that_are_no_connections_are_left_out() -> None:
    strange: list[Any] = [None, 5, [], {}, {"client_properties": "x", "user": None}, connection("x" * 1000)]
    found = inventory(strange, "a")
    assert [len(each["id"]) for each in found["sidecars"]] == [255]
    assert sum(each["connections"] for each in found["others"]) == 2


def test_an_empty_list_is_an_empty_fleet() -> None:
    assert inventory([], "a") == {"sidecars": [], "sidecars_of": 0, "connections": 0, "others": []}
