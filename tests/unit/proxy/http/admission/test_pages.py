"""Requests that a web page could have a browser send, told by their headers."""

import socket
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from proxy.http.admission.pages import HostNames, refuse_foreign
from proxy.http.formats.problems import ProblemError
from proxy.settings.parse import Address

LOOPBACK, POD = Address("127.0.0.1", 15680), Address("0.0.0.0", 15681)

ALWAYS = (
    *("localhost", "localhost:15680", "LOCALHOST", "localhost.", "app.localhost:8080", "127.0.0.1", "127.0.0.1:15680"),
    *("127.1.2.3:80", "[::1]", "[::1]:15680"),
)
ELSEWHERE = (
    *("10.1.2.3:15681", "[fd00::7]:15681", "0.0.0.0:15681", "ringproxy", "ringproxy:15681", "ringproxy.shop.svc:15681"),
    "ringproxy.shop.svc.cluster.local",
)
NEVER = (
    *("evil.example", "evil.example:15680", "127.0.0.1.evil.example", "localhost.evil.example", "evil.svc.example"),
    *("[::1", "::1", "a:b:c", "localhost:15680:1", "localhost/", "", " ", "localhost@evil.example", "x" * 300),
    *("127.0.0.1.nip.io:15680", "svc.cluster.local.evil.example"),
)


def status(names: HostNames, host: str | None, transport: Any) -> int:
    """Return the status of the problem, 200 for none."""
    headers = {} if host is None else {"Host": host}
    request = make_mocked_request("POST", "/", headers, transport=transport)
    try:
        names.check(request)
    except ProblemError as problem:
        return problem.status
    return 200


def test_a_wrong_name_is_told_with_the_setting() -> None:
    with pytest.raises(ProblemError) as raised:
        HostNames(LOOPBACK).check(make_mocked_request("POST", "/", {"Host": "evil.example"}, transport=TCP))
    assert (raised.value.kind, raised.value.retryable) == ("misdirected", False)
    assert raised.value.detail == "Host: 'evil.example' is not a name of this listener; host_names adds names"


class Transport:
    """One that knows only the address of its own end."""

    def __init__(self, sockname: object) -> None:
        self._sockname = sockname

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._sockname if name == "sockname" else default


TCP: Any = Transport(("127.0.0.1", 15680))
UNIX: Any = Transport("/run/ringproxy.sock")


@pytest.mark.parametrize("listen", [LOOPBACK, Address("::1", 1), Address("localhost", 1)])
def test_the_names_of_a_loopback_listener(listen: Address) -> None:
    names = HostNames(listen)
    for _ in range(2):
        assert {host: status(names, host, TCP) for host in ALWAYS} == dict.fromkeys(ALWAYS, 200)
        others = (*ELSEWHERE, *NEVER, socket.gethostname() + ".example")
        assert {host: status(names, host, TCP) for host in others} == dict.fromkeys(others, 421)


def test_the_names_of_another_listener() -> None:
    names = HostNames(POD)
    taken = (*ALWAYS, *ELSEWHERE, socket.gethostname(), f"{socket.gethostname()}:15681")
    for _ in range(2):
        assert {host: status(names, host, TCP) for host in taken} == dict.fromkeys(taken, 200)
        assert {host: status(names, host, TCP) for host in NEVER} == dict.fromkeys(NEVER, 421)


def test_no_host_and_a_unix_socket() -> None:
    names = HostNames(LOOPBACK)
    assert status(names, None, TCP) == 200
    assert status(names, "anything.example", UNIX) == 200


@pytest.mark.parametrize("listen", [LOOPBACK, POD])
def test_further_names(listen: Address) -> None:
    names = HostNames(listen, ["Ringproxy.example", "10.0.0.9", "fd00::9"])
    for host in ("ringproxy.example:15680", "RINGPROXY.EXAMPLE.", "10.0.0.9:1", "[fd00::9]:1"):
        assert status(names, host, TCP) == 200
    assert status(names, "other.example", TCP) == 421
    assert status(HostNames(listen, ["*"]), "evil.example", TCP) == 200
    assert status(HostNames(listen, ["*"]), "no host", TCP) == 200


def test_what_is_remembered_of_names_is_bounded() -> None:
    names = HostNames(POD)
    for number in range(300):
        assert status(names, f"name-{number}", TCP) == 200
    assert len(names._known) <= 100


def refused(**headers: str) -> str:
    """Return the text of the problem; empty where there is none."""
    request = make_mocked_request("POST", "/", {name.replace("_", "-"): value for name, value in headers.items()})
    try:
        refuse_foreign(request)
    except ProblemError as problem:
        return f"{problem.status}" if problem.status != 403 else problem.detail.partition(":")[0]
    return ""


def test_pages_of_other_origins() -> None:
    host = "localhost:15680"
    for site in ("cross-site", "same-site", "CROSS-SITE", "", "new-value"):
        assert refused(Host=host, Sec_Fetch_Site=site, Origin=f"http://{host}") == "Sec-Fetch-Site"
    for origin in (
        *(
            "http://evil.example",
            "null",
            "",
            "http://localhost",
            "http://localhost:3000",
            "file://",
            "//localhost:15680",
        ),
        *("http://localhost:15680.evil.example", "chrome-extension://localhost:15680"),
    ):
        assert refused(Host=host, Origin=origin) == "Origin"
    assert refused(Origin="null") == refused(Host="", Origin="http://") == "Origin"


def test_no_page_and_a_page_of_this_origin() -> None:
    host = "localhost:15680"
    assert refused(Host=host) == ""
    for origin in (f"http://{host}", f"https://{host}", "http://LOCALHOST:15680"):
        assert refused(Host=host, Origin=origin) == ""
    for site in ("same-origin", "none"):
        assert refused(Host=host, Sec_Fetch_Site=site) == ""
    # Behind a proxy that has put its own name into Host; the browser's word counts.
    assert refused(Host="backend", Sec_Fetch_Site="same-origin", Origin="https://app.example") == ""
