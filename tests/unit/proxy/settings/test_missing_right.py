"""The right that the broker's text names, whatever strangers have put into the names of exchanges and queues."""

import pytest

from proxy.settings.missing_right import MissingRight, missing_right

TEXT = "ACCESS_REFUSED - {} access to {} '{}' in vhost '{}' refused for user '{}'"


@pytest.mark.parametrize("right", ["configure", "write", "read"])
@pytest.mark.parametrize("kind", ["exchange", "queue"])
@pytest.mark.parametrize("around", ["{}", "403 {}", "{}; grant it", "{} by backend ldap"])
def test_the_text_names_user_right_and_resource(right: str, kind: str, around: str) -> None:
    found = missing_right(around.format(TEXT.format(right, kind, "or.ders", "shop", "anna")))
    assert found == MissingRight("shop", "anna", right, f"{kind} 'or.ders'", r"^or\.ders$")


@pytest.mark.parametrize(
    "name",
    [
        "it's",
        "x' in vhost '/' refused for user 'mallory",
        "x' in vhost '/' refused for user 'mallory'; ",
        "ACCESS_REFUSED - read access to queue 'x' in vhost '/' refused for user 'mallory'",
        "two\nlines",
    ],
)
def test_a_name_cannot_name_another_user(name: str) -> None:
    found = missing_right(TEXT.format("write", "exchange", name, "shop", "anna"))
    assert found is not None
    assert found[:4] == ("shop", "anna", "write", f"exchange {name!r}")


def test_one_lane_stands_for_all_of_its_exchange() -> None:
    one, other = (missing_right(TEXT.format("write", "exchange", f"orders.lane.{n}", "/", "anna")) for n in (1, 2))
    assert one == other == MissingRight("/", "anna", "write", "the lanes of an exchange", r"^orders(\.lane\..*)?$")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NOT_FOUND - no exchange 'x' in vhost '/'",
        "ACCESS_REFUSED - write access to topic 'k' in exchange 'x' in vhost '/' refused for user 'anna'",
        TEXT.format("write", "exchange", "x", "shop", "anna")[:-1],
        TEXT.format("write", "exchange", "x" * 300, "shop", "anna")[:252] + "...",
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN.",
    ],
)
def test_a_text_that_names_no_right(text: str) -> None:
    assert missing_right(text) is None


def test_the_remedy_can_be_pasted_into_a_shell() -> None:
    found = missing_right(TEXT.format("write", "exchange", "amq.default", "a b", "anna; reboot"))
    assert found is not None
    assert found.remedy == (
        r"Grant write on ^amq\.default$: "
        "rabbitmqctl set_permissions -p 'a b' 'anna; reboot' CONFIGURE WRITE READ."
    )
