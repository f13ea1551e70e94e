"""Settings from file, environment and flags: what may be given, and what a mistake is told as."""

import dataclasses
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from proxy.settings.config import Settings
from proxy.settings.credentials import of_url
from proxy.settings.parse import Address, ConfigError
from proxy.settings.sources import describe, field_names, help_of, hidden, load_settings


def load(
    tmp_path: Path, toml: str | None = None, environment: dict[str, str] | None = None, /, **flags: str
) -> Settings:
    file = None
    if toml is not None:
        file = tmp_path / "ringproxy.toml"
        file.write_text(toml, encoding="utf-8")
    return load_settings(file, environment or {}, flags)


def mistake(*given: Any, **flags: str) -> str:
    """The message of the ConfigError that these settings must raise: always one line."""
    with pytest.raises(ConfigError) as raised:
        load(*given, **flags)
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_defaults_are_those_documented() -> None:
    settings = load_settings(None, {}, {})
    assert settings == Settings()
    assert str(settings.broker_url) == "amqp://guest:guest@localhost:5672/"
    assert str(settings.management_url[0]) in (
        "http://guest:guest@localhost:15672",
        "http://guest:guest@localhost:15672/",
    )
    listeners = (settings.amqp_listen, settings.http_listen, settings.admin_listen)
    assert [str(address) for address in listeners] == ["127.0.0.1:5673", "127.0.0.1:15680", "127.0.0.1:15681"]


def test_file_then_environment_then_flags(tmp_path: Path) -> None:
    toml = "sync_interval = 1\nsettle_time = 1\nmax_body = 1\n"
    environment = {"RINGPROXY_SETTLE_TIME": "2", "RINGPROXY_MAX_BODY": "2", "PATH": "/bin"}
    settings = load(tmp_path, toml, environment, max_body="3")
    assert (settings.sync_interval, settings.settle_time, settings.max_body) == (1.0, 2.0, 3)
    assert settings.confirm_timeout == Settings().confirm_timeout


def test_every_setting_can_be_given_in_all_three_places(tmp_path: Path) -> None:
    given = {
        "broker_url": "amqps://u:p@broker.example/v",
        "broker_password_file": str(tmp_path / "secret"),
        "management_url": "https://u:p@broker.example:15671",
        "oauth_token_url": "https://login.example/token",
        "oauth_client_id": "sidecar",
        "oauth_client_secret_file": str(tmp_path / "secret"),
        "oauth_scope": "rabbitmq.write:*/* rabbitmq.tag:management",
        "broker_addresses": "rabbit-1:5672,[::1]:5673",
        "amqp_listen": "[::1]:1",
        "allow_mechanisms": "EXTERNAL",
        "http_listen": "0.0.0.0:2",
        "admin_listen": "localhost:0",
        "admin_console": "false",
        "http_socket": "/run/ringproxy.sock",
        "tokens_file": "tokens.toml",
        "insecure": "true",
        "management_publish": "true",
        "tls_cert_file": "tls.crt",
        "tls_key_file": "tls.key",
        "client_ca_file": "clients.crt",
        "ca_file": "ca.crt",
        "client_cert_file": "client.crt",
        "client_key_file": "client.key",
        "route": "a*,%2F/b",
        "shadow": "c",
        "pass": "d",
        "sync_interval": "3.5",
        "settle_time": "0",
        "ring_max_age": "7",
        "on_stale": "refuse",
        "on_dead_letter": "rewrite",
        "groups": "orders,shop/*",
        "groups_in_series": "orders",
        "groups_window": "50",
        "groups_retry_delay": "0.5",
        "groups_retry_delay_max": "5",
        "groups_retry_limit": "4",
        "groups_retry_then": "stop",
        "groups_dead_letter": "dead",
        "groups_operators": "anna,bob",
        "groups_hold_max": "90",
        "groups_require": "exact",
        "groups_ack_timeout": "0",
        "groups_leave_timeout": "0",
        "management_timeout": "1",
        "lookup_timeout": "2",
        "confirm_timeout": "4",
        "drain_time": "0",
        "body_timeout": "5",
        "broker_connections": "2",
        "kept_connections": "3",
        "kept_connection_time": "6",
        "max_sessions": "100",
        "max_body": "99",
        "max_batch": "98",
        "max_batch_body": "97",
        "max_in_flight": "96",
        "max_in_flight_bytes": "95",
        "max_http_connections": "93",
        "host_names": "ringproxy.example,10.0.0.9",
        "ring_cache_dir": "/var/lib/ringproxy/rings",
        "journal_dir": "/var/lib/ringproxy",
        "journal_sample": "0.5",
        "journal_key": "hash",
        "journal_key_file": str(tmp_path / "secret"),
        "journal_file_seconds": "5",
        "journal_file_bytes": "94",
        "journal_max_bytes": "93",
        "trace_sample": "0.01",
        "route_share": "12.5",
        "log_level": "debug",
        "log_format": "json",
    }
    (tmp_path / "secret").write_text("s3cret\n")
    # A journal goes to one of two places, and one of the two password files leaves a login for the token.
    left_out = {"journal_stream", "management_password_file"}
    assert set(given) == set(field_names()) - left_out
    by_flag = load(tmp_path, **given)
    by_environment = load(tmp_path, None, {f"RINGPROXY_{name.upper()}": text for name, text in given.items()})
    by_file = load(tmp_path, "".join(f'{name} = "{text}"\n' for name, text in given.items()))
    assert by_flag == by_environment == by_file
    defaults = Settings()
    for field in dataclasses.fields(Settings):
        same = getattr(by_flag, field.name) == getattr(defaults, field.name)
        assert same == (field.name in left_out), field.name
    assert by_flag.amqp_listen == Address("::1", 1)
    assert by_flag.brokers == (Address("rabbit-1", 5672), Address("::1", 5673))
    assert Settings().brokers == (Address("localhost", 5672),)
    assert by_flag.route == ("a*", "%2F/b")


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"groups_retry_limit": "3"}, "groups_retry_limit: has no effect, because groups names no exchange"),
        ({"groups_dead_letter": "d"}, "groups_dead_letter: has no effect, because groups names no exchange"),
        ({"groups_operators": "anna"}, "groups_operators: has no effect, because groups names no exchange"),
        ({"groups": "x", "groups_retry_limit": "3"}, "groups_retry_limit: 3 tries end in a dead letter"),
        ({"groups_hold_max": "90"}, "groups_hold_max: has no effect, because groups names no exchange"),
        ({"groups": "x", "groups_hold_max": "59"}, "groups_hold_max: 59 is less than groups_retry_delay_max, 60"),
        (
            {"groups": "x", "groups_hold_max": "90", "groups_retry_limit": "8", "groups_retry_then": "stop"},
            "groups_hold_max: 90 s are over before a message was tried groups_retry_limit = 8 times, which takes 228"
            ".75 s",
        ),
        (
            {"groups": "x", "groups_hold_max": "74", "groups_retry_limit": "6", "groups_retry_then": "stop"},
            "groups_hold_max: 74 s are over before a message was tried groups_retry_limit = 6 times",
        ),
        (
            {"groups": "x", "groups_retry_limit": "3", "groups_dead_letter": "x"},
            "groups_dead_letter: 'x' is a group itself",
        ),
        (
            {"groups": "x", "groups_retry_limit": "3", "groups_dead_letter": "d" * 256},
            "groups_dead_letter: longer than the 255 bytes",
        ),
        ({"journal_dir": "/a", "journal_stream": "q"}, "journal_stream: journal_dir is set too"),
        ({"journal_stream": "q" * 256}, "journal_stream: longer than the 255 bytes"),
        ({"journal_stream": "a\0b"}, "journal_stream: 'a\\x00b' is not a name"),
        ({"journal_sample": "0"}, "journal_sample: 0 must be greater than 0"),
        ({"journal_sample": "1.01"}, "journal_sample: 1.01 is more than 1"),
        ({"trace_sample": "1.01"}, "trace_sample: 1.01 is more than 1"),
        ({"route_share": "100.5"}, "route_share: 100.5 is more than 100 (percent)"),
        ({"route_share": "-1"}, "route_share: '-1' is outside 0 to 1e9"),
        ({"route_share": "10%"}, "route_share: '10%' is not a number"),
        ({"trace_sample": "-0.1"}, "trace_sample: '-0.1' is outside 0 to 1e9"),
        ({"trace_sample": "nan"}, "trace_sample: 'nan' is outside 0 to 1e9"),
        ({"journal_key": "hash"}, "journal_key: needs journal_key_file too"),
        ({"journal_key_file": "/a"}, "journal_key_file: needs journal_key = hash too"),
        ({"journal_key": "all"}, "journal_key: 'all' is not one of plain, hash, none"),
        ({"journal_file_seconds": "0"}, "journal_file_seconds: 0 must be greater than 0"),
    ],
)
def test_a_journal_that_cannot_be(tmp_path: Path, given: dict[str, str], fault: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(fault)):
        load(tmp_path, **given)


OAUTH = {"oauth_token_url": "https://h/token", "oauth_client_id": "c", "oauth_client_secret_file": "f"}


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"oauth_client_id": "c"}, "oauth_client_id: needs oauth_token_url too"),
        ({"oauth_client_secret_file": "f"}, "oauth_client_secret_file: needs oauth_token_url too"),
        ({"oauth_scope": "s"}, "oauth_scope: needs oauth_token_url too"),
        ({"oauth_token_url": "https://h"}, "oauth_token_url: needs oauth_client_id too"),
        (
            {"oauth_token_url": "https://h", "oauth_client_id": "c"},
            "oauth_token_url: needs oauth_client_secret_file too",
        ),
        (OAUTH | {"oauth_token_url": "amqp://h"}, "oauth_token_url: does not start with http:// or https://"),
        (OAUTH | {"oauth_token_url": "https://c:hush@h"}, "oauth_token_url: has a user; set oauth_client_id"),
        (OAUTH | {"oauth_token_url": "https://h/token?a=b"}, "oauth_token_url: a URL's part after '?'"),
        (
            OAUTH | {"broker_password_file": "f", "management_password_file": "f"},
            "oauth_token_url: has no effect, because broker_password_file and management_password_file have both",
        ),
    ],
)
def test_an_authorization_server_that_cannot_be(tmp_path: Path, given: dict[str, str], fault: str) -> None:
    message = mistake(tmp_path, **given)
    assert message.startswith(fault)
    assert "hush" not in message


def test_a_password_that_is_hidden_does_not_count_beside_a_token(tmp_path: Path) -> None:
    given = {"broker_url": "amqp://me:***@h", "management_url": "http://me:***@h"}
    assert "'***'" in mistake(tmp_path, **given)
    assert load(tmp_path, **given, **OAUTH).oauth_client_id == "c"


def test_the_ca_of_an_authorization_server_has_an_effect(tmp_path: Path) -> None:
    assert load(tmp_path, **OAUTH, ca_file="ca.crt").reaches_by_tls


def test_every_setting_has_a_meaning() -> None:
    shown = describe(Settings())
    for name in field_names():
        assert len(help_of(name)) > 10
        assert f"RINGPROXY_{name.upper()})" in shown


def test_tomls_own_types(tmp_path: Path) -> None:
    toml = "sync_interval = 2\nsettle_time = 0.5\nmax_body = 1_000\nroute = ['a', 'b,c']\nshadow = 'd, e,'\npass = []\n"
    settings = load(tmp_path, toml)
    assert type(settings.sync_interval) is float
    assert (settings.sync_interval, settings.settle_time, settings.max_body) == (2.0, 0.5, 1000)
    # A comma separates only where there is nothing else to.
    assert (settings.route, settings.shadow, settings.pass_) == (("a", "b,c"), ("d", "e"), ())


@pytest.mark.parametrize(
    ("toml", "told"),
    [
        ("no_such = 1", "no_such"),
        ("pass_ = []", "pass_"),
        ("[broker]\nurl = 1", "broker"),
        ("sync_interval = true", "sync_interval: true is not a number"),
        ("sync_interval = [1]", "sync_interval"),
        ("sync_interval = nan", "sync_interval"),
        ("sync_interval = inf", "sync_interval"),
        ("sync_interval = -1", "sync_interval"),
        ("sync_interval = 0", "sync_interval"),
        ("sync_interval = 1" + "0" * 400, "sync_interval"),
        ("sync_interval = 1" + "0" * 5000, "ringproxy.toml"),
        ("settle_time = -0.1", "settle_time"),
        ("max_body = 1.5", "max_body"),
        ("max_body = true", "max_body: true is not a whole number"),
        ("max_body = 0", "max_body"),
        ("max_body = -1", "max_body"),
        ("route = 1", "route"),
        ("route = [1]", "route"),
        ('route = [""]', "route"),
        ("route = {a = 1}", "route"),
        ("broker_url = 5", "broker_url"),
        ("broker_password_file = true", "broker_password_file"),
        ("broker_password_file = ['a']", "broker_password_file"),
        ('broker_password_file = "a\\u0000b"', "broker_password_file"),
        ("http_listen = 8080", "http_listen"),
        ("http_listen = ['127.0.0.1:80']", "http_listen"),
        ("insecure = 1", "insecure: 1 is not true or false"),
        ("on_stale = true", "on_stale: true is not one of serve, refuse"),
        ("on_stale = ['serve']", "on_stale"),
        ("sync_interval = ", "ringproxy.toml: not TOML"),
        ("route = " + "[" * 5000, "ringproxy.toml: not TOML"),
    ],
)
def test_a_mistake_in_the_file_names_the_file_and_the_setting(tmp_path: Path, toml: str, told: str) -> None:
    message = mistake(tmp_path, toml)
    assert told in message
    # A mistake that only all the settings together show, a zero say, is told without the place.
    assert "ringproxy.toml" in message or "greater than 0" in message or "at least 1" in message


def test_a_file_that_is_missing_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot be read"):
        load_settings(tmp_path / "nowhere.toml", {}, {})
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="binary: cannot be read"):
        load_settings(tmp_path / "binary", {}, {})


@pytest.mark.parametrize("variable", ["RINGPROXY_NO_SUCH", "RINGPROXY_", "RINGPROXY_Max_Body", "RINGPROXY_PASS_"])
def test_an_unknown_variable_is_named(tmp_path: Path, variable: str) -> None:
    assert variable in mistake(tmp_path, None, {variable: "1"})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (
            "broker_url",
            [
                *("", "localhost", "amqp://", "amqp:/localhost", "http://h", "//h", "h:5672", "amqp://[::1"),
                *("amqp://h:99999", "amqp://h:x", "amqp://h:0", "amqp://h:-1", "amqp://\udcff"),
            ],
        ),
        ("management_url", ["", "h:15672", "amqp://h", "ftp://h", "http://h:99999", "http:///x", "http://a:b:c@h:x"]),
        (
            "http_listen",
            [
                *("", "80", ":80", "h:", "h:x", "h:65536", "h:-1", "h:+1", "h:1_0", "h:٣", "h: 80", "h:" + "9" * 5000),
                *("::1:80", "[]:80", "a" * 300 + ":80", "\udcff:80", "a b:80"),
            ],
        ),
        ("sync_interval", ["", "x", "nan", "inf", "-1", "-0.5", "1e400", "0", "1,5", "1e10"]),
        ("max_body", ["", "x", "1.0", "-1", "+1", "1_0", "0", "٣", "1" * 20, "1" * 5000]),
        ("on_stale", ["", "Serve", "stale"]),
        ("on_dead_letter", ["", "route"]),
        ("groups", ["a/b/c", "ok,a//b"]),
        ("groups_in_series", ["orders"]),
        ("groups_window", ["0", "-1", "x", "65536"]),
        ("groups_retry_delay", ["-1", "x", "nan", "61"]),
        ("groups_retry_delay_max", ["-1", "x", "nan"]),
        ("groups_retry_limit", ["0", "-1", "x"]),
        ("groups_retry_then", ["", "drop"]),
        ("groups_hold_max", ["", "-1", "x", "nan"]),
        ("groups_dead_letter", [""]),
        ("groups_require", ["", "none"]),
        ("groups_ack_timeout", ["-1", "x", "nan"]),
        ("groups_leave_timeout", ["-1", "x", "nan"]),
        ("log_level", ["", "INFO", "trace"]),
        ("log_format", ["", "JSON", "logfmt"]),
        ("insecure", ["", "True", "yes", "1"]),
        ("body_timeout", ["0", "x"]),
        ("broker_connections", ["0", "1.5"]),
        ("kept_connections", ["0", "-1", "x"]),
        ("kept_connection_time", ["0", "-1", "x", "nan"]),
        ("max_sessions", ["0"]),
        ("max_batch", ["0"]),
        ("max_batch_body", ["0"]),
        ("max_in_flight", ["0"]),
        ("max_in_flight_bytes", ["0"]),
        ("journal_max_bytes", ["0", "1G"]),
        ("max_http_connections", ["0"]),
        ("host_names", ["ringproxy:15680", "a b", "http://ringproxy", "ok,a/b", "*.example", "a,*b"]),
        ("route", ["a/b/c", "ok,a//b", "/", "/orders", "orders/", "\udcff"]),
        ("shadow", ["a/b/c"]),
        ("pass", ["a/b/c"]),
        ("broker_password_file", [""]),
    ],
)
def test_a_value_that_does_not_parse_is_one_line_that_names_the_setting(
    tmp_path: Path, name: str, values: list[str]
) -> None:
    for value in values:
        by_flag = mistake(tmp_path, **{name: value})
        assert by_flag == mistake(tmp_path, None, {f"RINGPROXY_{name.upper()}": value})
        assert by_flag.startswith(f"{name}: "), value


@given(st.sampled_from(field_names()), st.text() | st.from_regex(r"[a-z:/@\[\]%0-9.,*-]{0,20}", fullmatch=True))
def test_any_text_is_a_setting_or_a_mistake_in_one_line(name: str, text: str) -> None:
    try:
        shown = describe(load_settings(None, {}, {name: text}))
    except ConfigError as error:
        shown = f"# {error}"  # one line: a comment
    assert set(tomllib.loads(shown)) <= set(field_names())


def test_one_address_for_two_listeners(tmp_path: Path) -> None:
    assert mistake(tmp_path, http_listen="localhost:1", admin_listen="localhost:1").startswith("admin_listen: ")
    assert load(tmp_path, http_listen="localhost:0", admin_listen="localhost:0").http_listen == Address("localhost", 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "[::1]", "localhost", "LocalHost"])
def test_loopback_is_open_to_all(tmp_path: Path, host: str) -> None:
    assert load(tmp_path, http_listen=f"{host}:1").is_open is False


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "[::]", "10.0.0.1", "192.168.127.1", "[fe80::1]", "h", "localhost.example"]
)
def test_any_other_address_wants_to_know_who_publishes(tmp_path: Path, host: str) -> None:
    message = mistake(tmp_path, http_listen=f"{host}:1")
    assert message.startswith("http_listen: ")
    for setting in ("tokens_file", "client_ca_file", "insecure", f"{host}:1"):
        assert setting in message
    tls = {"tls_cert_file": "a", "tls_key_file": "b"}
    assert mistake(tmp_path, http_listen=f"{host}:1", **tls).startswith("http_listen: ")
    assert load(tmp_path, http_listen=f"{host}:1", tokens_file="t").is_open is False
    assert load(tmp_path, http_listen=f"{host}:1", client_ca_file="c", **tls).is_open is False
    assert load(tmp_path, http_listen=f"{host}:1", insecure="true").is_open is True


def test_listeners_that_do_not_take_publishes_over_http_may_be_anywhere(tmp_path: Path) -> None:
    assert load(tmp_path, admin_listen="0.0.0.0:1", amqp_listen="0.0.0.0:2").is_open is False


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"tls_cert_file": "a"}, "tls_cert_file: needs tls_key_file too"),
        ({"tls_key_file": "a"}, "tls_key_file: needs tls_cert_file too"),
        ({"client_cert_file": "a", "broker_url": "amqps://h"}, "client_cert_file: needs client_key_file too"),
        ({"client_key_file": "a", "broker_url": "amqps://h"}, "client_key_file: needs client_cert_file too"),
        ({"client_ca_file": "a"}, "client_ca_file: clients show certificates over TLS only; set tls_cert_file"),
        (
            {"ca_file": "a"},
            "ca_file: has no effect, because neither broker_url is amqps://"
            " nor management_url or oauth_token_url https://",
        ),
        (
            {"client_cert_file": "a", "client_key_file": "b"},
            "client_cert_file: has no effect, because neither broker_url",
        ),
    ],
)
def test_settings_that_go_together(tmp_path: Path, flags: dict[str, str], told: str) -> None:
    assert mistake(tmp_path, **flags).startswith(told)


def test_tls_to_the_management_api_alone_is_enough_for_its_files(tmp_path: Path) -> None:
    assert load(tmp_path, ca_file="a", management_url="https://h").ca_file == Path("a")


def test_service_links_of_kubernetes_are_not_settings(tmp_path: Path) -> None:
    """A pod beside the Services `ringproxy` and `ringproxy-metrics`."""
    links: dict[str, str] = {}
    for service in ("RINGPROXY", "RINGPROXY_METRICS"):
        links |= {
            f"{service}_SERVICE_HOST": "10.0.0.7",
            f"{service}_SERVICE_PORT": "15680",
            f"{service}_SERVICE_PORT_HTTP": "15680",
            f"{service}_PORT": "tcp://10.0.0.7:15680",
            f"{service}_PORT_15680_TCP": "tcp://10.0.0.7:15680",
            f"{service}_PORT_15680_TCP_ADDR": "10.0.0.7",
            f"{service}_PORT_15680_TCP_PORT": "15680",
            f"{service}_PORT_15680_TCP_PROTO": "tcp",
        }
    assert load(tmp_path, None, {**links, "RINGPROXY_MAX_BODY": "5"}).max_body == 5
    assert "RINGPROXY_HTTP_PORT" in mistake(tmp_path, None, {**links, "RINGPROXY_HTTP_PORT": "80"})
    assert "RINGPROXY_PORT" in mistake(tmp_path, None, {"RINGPROXY_PORT": "80"})


def test_the_file_of_settings_may_be_named_in_the_environment(tmp_path: Path) -> None:
    assert load(tmp_path, None, {"RINGPROXY_CONFIG": "x.toml"}) == Settings()


@pytest.mark.parametrize(
    ("url", "vhost"),
    [
        ("amqp://h", "/"),
        ("amqp://h/", "/"),
        ("amqp://h/%2F", "/"),
        ("amqp://h/%2f", "/"),
        ("amqp://h/prod", "prod"),
        ("amqp://h/%2Fprod", "/prod"),
        ("amqp://h/a%2Fb", "a/b"),
        ("amqp://h/a%20b", "a b"),
        ("amqp://h/%C3%A9", "é"),
    ],
)
def test_the_default_virtual_host_is_the_path(tmp_path: Path, url: str, vhost: str) -> None:
    assert load(tmp_path, broker_url=url).default_vhost == vhost


@pytest.mark.parametrize("url", ["amqp://h/a?heartbeat=5", "amqp://h/#x", "amqp://u:***@h/"])
def test_parts_of_a_url_that_would_do_nothing_or_harm_are_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match=r"^broker_url: "):
        load(tmp_path, broker_url=url)


SECRET = "s3cret/@:%41 é€"
QUOTED = "s3cret%2F%40%3A%2541%20%C3%A9%E2%82%AC"


def test_a_password_with_any_characters_can_be_given_in_a_url(tmp_path: Path) -> None:
    (url,) = load(tmp_path, management_url=f"http://us%40er:{QUOTED}@h:1").management_url
    assert url.password == SECRET
    assert of_url(url) == ("us@er", SECRET)


@pytest.mark.parametrize(
    ("url", "login"),
    [
        ("http://h", ("guest", "guest")),
        ("http://me@h", ("me", "")),
        ("http://me:@h", ("me", "")),
        ("http://me:x@h", ("me", "x")),
    ],
)
def test_a_url_without_a_user_means_guest(url: str, login: tuple[str, str]) -> None:
    """As in amqp:// URLs; a user without a password has none."""
    assert of_url(URL(url)) == login


@pytest.mark.parametrize("url", ["http://a:hush@h/api", "http://a:hush@h:15672/api/", "http://h/rabbit/api"])
def test_a_management_url_that_ends_in_api_is_a_mistake(tmp_path: Path, url: str) -> None:
    message = mistake(tmp_path, management_url=url)
    assert message.startswith("management_url: ends in /api, which the sidecar appends itself; leave /api off")
    assert "hush" not in message
    assert load(tmp_path, management_url="http://h/rabbit").management_url[0].path == "/rabbit"


def test_several_management_urls_are_a_list_or_text_with_commas_between(tmp_path: Path) -> None:
    urls = (URL("http://me:a,b@h1:1"), URL("https://me:a,b@h2:2/below"))
    for written in ("http://me:a,b@h1:1,https://me:a,b@h2:2/below", "http://me:a,b@h1:1 , https://me:a,b@h2:2/below "):
        assert load(tmp_path, management_url=written).management_url == urls
    told = load(tmp_path, 'management_url = ["http://me:a,b@h1:1", "https://me:a,b@h2:2/below"]')
    assert told.management_url == urls
    assert told.management_encrypted
    assert "a,b" not in describe(told)
    assert describe(told).count("me:***@h") == 2
    # A comma alone ends no URL.
    assert load(tmp_path, management_url="http://me:a,b@h1:1").management_url == urls[:1]


@pytest.mark.parametrize(
    ("urls", "why"),
    [
        ("http://a:hush@h, ftp://a:hush@h", "URL 2 of 2: does not start with http:// or https://"),
        ("http://a:hush@h,http://a:hush@h/api,http://h", "URL 2 of 3: ends in /api"),
        ("http://a:hush@h,http://a:hush@h:0", "URL 2 of 2: not a URL like"),
        ("http://a:hush@h,http://a:more@h2", "URL 2 of 2: has another user or password than the first"),
        ("http://a:hush@h,http://h2", "URL 2 of 2: has another user or password than the first"),
        ("http://a:hush@h1,h2", "has a comma in its host name"),
        ("http://a%3Ab:hush@h,http://a%3Ab:hush@h2", "URL 1 of 2: has a ':' in its user"),
    ],
)
def test_a_mistake_in_one_of_several_urls_names_its_place(tmp_path: Path, urls: str, why: str) -> None:
    message = mistake(tmp_path, management_url=urls)
    assert message.startswith(f"management_url: {why}")
    assert "hush" not in message
    assert "more" not in message
    assert mistake(tmp_path, "management_url = []") == f"{tmp_path}/ringproxy.toml: management_url: has no URL"


def test_one_password_file_is_for_all_management_urls(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    urls = "http://me:old@h1,http://me@h2"
    settings = load(tmp_path, management_url=urls, management_password_file=str(tmp_path / "secret"))
    assert [of_url(url) for url in settings.management_url] == [("me", SECRET)] * 2
    assert "'***'" in mistake(tmp_path, management_url="http://me:***@h1,http://me:***@h2")


def test_a_user_that_basic_authentication_cannot_tell_is_a_mistake(tmp_path: Path) -> None:
    message = mistake(tmp_path, management_url="http://a%3Ab:hush@h")
    assert message.startswith("management_url: ")
    assert "hush" not in message


@pytest.mark.parametrize("ending", ["", "\n", "\r\n", "\nsecond line\n"])
def test_a_secret_is_the_first_line_of_its_file(tmp_path: Path, ending: str) -> None:
    file = tmp_path / "secret"
    file.write_bytes((SECRET + ending).encode())
    settings = load(
        tmp_path,
        broker_url="amqp://me:old@h/v",
        broker_password_file=str(file),
        management_url="http://h:1",
        management_password_file=str(file),
    )
    assert settings.broker_url.password == settings.management_url[0].password == SECRET
    assert (settings.broker_url.user, settings.default_vhost) == ("me", "v")
    assert of_url(settings.management_url[0]) == ("guest", SECRET)


def test_a_secret_is_not_stripped(tmp_path: Path) -> None:
    """Spaces may be part of it, and so may what Python's splitlines takes for an end of line."""
    file = tmp_path / "secret"
    file.write_bytes(" a\x0bb\x85c\u2028d \n".encode())
    assert load(tmp_path, broker_password_file=str(file)).broker_url.password == " a\x0bb\x85c\u2028d "


@pytest.mark.parametrize("name", ["broker_password_file", "management_password_file"])
def test_a_secret_file_that_is_missing_empty_or_no_text(tmp_path: Path, name: str) -> None:
    assert mistake(tmp_path, **{name: str(tmp_path / "nowhere")}).startswith(f"{name}: ")
    assert mistake(tmp_path, **{name: str(tmp_path)}).startswith(f"{name}: ")
    for content in (b"", b"\n", b"\nlater\n", b"\xff\n"):
        (tmp_path / "secret").write_bytes(content)
        assert mistake(tmp_path, **{name: str(tmp_path / "secret")}).startswith(f"{name}: ")


@pytest.mark.parametrize(
    "url",
    [
        "http://me:hush@h:5672/",
        "amqp://me:hush@h:99999/",
        "amqp://me:hush@h:port/",
        "amqp://me:hush@/",
        "me:hush@h",
        "//me:hush@h",
        "amqp://:hush@h:0",
        "ftp://:hush@h",
        "amqp://me:hu/hush@h",
        "amqp://me:x#hush@h",
    ],
)
def test_no_message_holds_a_password(tmp_path: Path, url: str) -> None:
    for setting in ("broker_url", "management_url"):
        if url.startswith("http") and setting == "management_url":
            url = url.replace("http", "amqp")
        assert "hush" not in mistake(tmp_path, **{setting: url})
        assert "hush" not in mistake(tmp_path, f'{setting} = "{url}"')
        assert "hush" not in mistake(tmp_path, f'{setting} = ["{url}"]')


def test_describe_hides_passwords_and_only_those(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    settings = load(
        tmp_path,
        broker_url=f"amqp://me:{QUOTED}@h:5/v%2Fw",
        management_url="http://you@h:6",
        management_password_file=str(tmp_path / "secret"),
    )
    shown = describe(settings)
    assert "s3cret" not in shown
    assert 'broker_url = "amqp://me:***@h:5/v%2Fw"' in shown
    assert "you:***@h:6" in shown
    assert hidden(URL("http://me@h")) == str(URL("http://me@h"))


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"sync_interval": "0.1234567", "ring_max_age": "123456789.5", "settle_time": "1e-7"},
        {"route": "a,%2F/b*,é", "shadow": "", "pass": "x\"y,x\\y,x'y"},
        {"route": "new\nline,tab\t,del\x7f,esc\x1b"},
        {"http_listen": "[::1]:0", "on_stale": "refuse", "max_body": "1"},
        {"broker_url": "amqps://h/%2Fprod", "management_url": "https://h/below/"},
        {"insecure": "true", "tls_cert_file": "a", "tls_key_file": "b"},
    ],
)
def test_describe_is_toml_that_gives_the_same_settings(tmp_path: Path, flags: dict[str, str]) -> None:
    bare = {"broker_url": "amqp://h", "management_url": "http://h", **flags}
    settings = load(tmp_path, **bare)
    assert load(tmp_path, describe(settings)) == settings


def test_describe_of_secret_files_is_toml(tmp_path: Path) -> None:
    (tmp_path / 'a "secret"').write_text("x\n")
    settings = load(tmp_path, broker_url="amqp://me:y@h", broker_password_file=str(tmp_path / 'a "secret"'))
    again = load(tmp_path, describe(settings), management_url=str(settings.management_url[0]))
    assert again == settings


def test_addresses_print_as_they_are_written() -> None:
    assert str(Address("::1", 80)) == "[::1]:80"
    assert str(Address("h", 0)) == "h:0"


def test_the_variable_of_the_install_is_no_setting() -> None:
    assert load_settings(None, {"RINGPROXY_COMPILE": "1"}, {}) == load_settings(None, {}, {})
