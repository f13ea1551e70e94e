"""The conditional requests of RabbitMQ's definitions, and why readings of bindings do not use them.

`docs/explanation/management-api.md` stands on this. No sidecar takes part.
"""

from base64 import b64encode
from http.client import HTTPConnection
from urllib.parse import quote, urlsplit

import pytest

from testbed.broker import Broker
from tests.integration.broker_api import BrokerApi, VirtualHost

pytestmark = [pytest.mark.long, pytest.mark.versions]


LOGIN = "Basic " + b64encode(b"definer:definer").decode()


def asked(broker: Broker, path: str, etag: str = "") -> tuple[int, str]:
    """Return the status and the ETag of an answer of the management API."""
    address = urlsplit(broker.management_url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=30)
    connection.request("GET", path, headers={"Authorization": LOGIN} | ({"If-None-Match": etag} if etag else {}))
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status, answer.getheader("etag", "")


def test_definitions_are_for_administrators_and_what_is_read_for_a_ring_has_no_etag(
    broker: Broker, api: BrokerApi, vhost: VirtualHost, other_vhost: VirtualHost
) -> None:
    vhost.ring("orders", ["q1"])
    of_vhost = quote(vhost.name, safe="")
    definitions, bindings = f"/api/definitions/{of_vhost}", f"/api/exchanges/{of_vhost}/orders/bindings/source"
    try:
        for tags, status in (("management", 401), ("monitoring", 401), ("policymaker", 401), ("administrator", 200)):
            api.ask("PUT", "users", "definer", body={"password": "definer", "tags": tags})
            vhost.permit("definer", ".*", ".*", ".*")
            assert asked(broker, definitions)[0] == status, tags
        assert asked(broker, bindings) == (200, "")
        _, etag = asked(broker, definitions)
        if not etag:
            return  # an older RabbitMQ, whose definitions have none
        assert asked(broker, definitions, etag)[0] == 304
        # Any change in the cluster makes it another one, also in another virtual host.
        other_vhost.queue("far away")
        status, other = asked(broker, definitions, etag)
        assert (status, other != etag) == (200, True)
    finally:
        api.ask("DELETE", "users", "definer")
