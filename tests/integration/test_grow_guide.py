"""The guide to growing in order, as its reader runs it, while a sidecar, a publisher and a member are at work."""

import re
import shlex
from collections.abc import Iterator

import pytest

from testbed.broker import Broker
from tests.integration import test_topology_guides
from tests.integration.broker_api import BrokerApi, VirtualHost, wait_until
from tests.integration.conftest import StartSidecar, with_login
from tests.integration.documents import Document, shop_of, tried
from tests.integration.ordered_load import OrderedLoad
from tests.integration.test_topology_guides import SHARDS, Reader
from tests.integration.test_topology_ordered import WAITS, stopped_after
from tests.integration.topology import between_looks, fleet_flags, killed

GUIDE = Document("docs/how-to/grow.md")
FILES = Document("docs/how-to/grow.md", "toml")
SHOWN = Document("docs/how-to/grow.md", "text")

CLOSING = "orders: step 2 of 4: closes the lanes of generation"


def test_every_block_is_tried_here() -> None:
    assert tried(GUIDE, "GUIDE", __file__)
    assert tried(FILES, "FILES", __file__)
    assert tried(SHOWN, "SHOWN", __file__)


@pytest.fixture
def shop(api: BrokerApi) -> Iterator[VirtualHost]:
    """The guide's virtual host and users, with the rights that it grants and no others."""
    (grants,) = GUIDE["Before you begin"]
    with shop_of(api, grants.splitlines(), ".*", ".*", ".*") as made:
        yield made


reader = test_topology_guides.reader


def shown(block: str, told: str) -> bool:
    """Return whether a command has printed a block of the guide, in which `...` stands for any lines."""
    pattern = re.escape(block).replace(r"\ \ \.\.\.", "(.|\n)*").replace("rabbit@a", "[^ ]+")
    return re.search(pattern, told) is not None


def test_an_exchange_grows_in_order(
    api: BrokerApi,
    broker: Broker,
    shop: VirtualHost,
    start_sidecar: StartSidecar,
    reader: Reader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in WAITS:
        monkeypatch.setattr(name, between_looks(broker))
    (six,), (ordered,), (block,) = FILES["Grow"], GUIDE["Grow"], SHOWN["Grow"]
    status, abort = GUIDE["If it waits, or was killed"]
    four = six.replace("shards = 6", "shards = 4")
    reader.file.write_text(four)
    reader(SHARDS["Make the shards"][1])
    sidecar = start_sidecar(groups="shop/orders")
    sidecar.wait_ready()
    flags = " ".join(fleet_flags(api))

    login = [
        f"--broker-url={with_login(broker.amqp_url, 'topology', 'PASSWORD', '/shop')}",
        f"--management-url={with_login(broker.management_url, 'topology', 'PASSWORD')}",
    ]

    def url(user: str) -> str:
        return with_login(f"amqp://127.0.0.1:{sidecar.amqp_port}", user, "PASSWORD", "/shop")

    with OrderedLoad([url("web")], [url("billing")], keys=40, rate=50, groups=("orders",)) as load:
        reader.file.write_text(six)
        assert shown(block, reader.here(ordered, more=flags))
        assert "generation 2 with 6 shards, and no change is under way" in reader.here(status)

        reader.file.write_text(four)
        with stopped_after(14):
            reader.here(ordered, 2, flags)
        assert "step 1 of 4: 2 of 4 lanes are bound; it can be taken back with --abort" in reader.here(status, 1)
        # RabbitMQ counts the messages of a new queue some seconds later.
        wait_until("it is taken back", lambda: reader.run(abort) == 0)
        assert "no change is under way" in reader.here(status)

        _, *arguments = shlex.split(f"{ordered} {flags}".replace("topology.toml", shlex.quote(str(reader.file))))
        assert killed([*arguments, *login], 19) == 19
        assert "changes to generation 3 with 4 shards" in reader.here(status, 1)
        told = reader.here(ordered, more=flags)
        assert f"{CLOSING} 2" in told
        assert told.endswith("orders: generation 3 with 4 shards is all there is\n")
    assert not load.overtaken
    assert not load.missing
    shards = [name for name in shop.queues() if not name.startswith("orders.group.")]
    assert sorted(shards) == [f"orders.g3.{n}" for n in (1, 2, 3, 4)]
