"""An access token, fetched from an authorization server that makes mistakes, and renewed in time."""

import asyncio
import base64
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port
from yarl import URL

from proxy.settings import access_token
from proxy.settings.access_token import MOST_BYTES, AccessToken, TokenError
from proxy.settings.config import Settings
from proxy.settings.files import Files
from proxy.settings.tls import ServerTls
from tests.certificates import Authority
from tests.unit.proxy.eventually import eventually

SECRET = "hush: hush/é"
LONG = "e" * 3000
"""Longer than AMQP's short strings."""

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def good(token: str = LONG, life: float = 3600, **more: Any) -> web.Response:
    return web.json_response({"access_token": token, "token_type": "Bearer", "expires_in": life} | more)


class FakeServer:
    """An authorization server that answers each request with the next of its answers, and then with the last again."""

    def __init__(self, *answers: Callable[[], web.Response]) -> None:
        self.answers = list(answers)
        self.forms: list[dict[str, str]] = []
        self.authorizations: list[str] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.forms.append({name: str(value) for name, value in (await request.post()).items()})
        self.authorizations.append(request.headers["Authorization"])
        return (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])()

    @asynccontextmanager
    async def listening(self, tls: ServerTls | None = None) -> AsyncIterator[URL]:
        app = web.Application()
        app.router.add_post("/token", self.handle)
        server = TestServer(app)
        await server.start_server(ssl=tls.context if tls is not None else None)
        try:
            yield server.make_url("/token").with_host("localhost")
        finally:
            await server.close()


def files(url: URL, folder: Path, **more: Any) -> Files:
    (folder / "secret").write_text(f"{SECRET}\n")
    given: dict[str, Any] = {"oauth_client_secret_file": folder / "secret", "oauth_client_id": "side car"}
    return Files(Settings(oauth_token_url=url, **given, **more))


def token_of(made: Files) -> AccessToken:
    assert made.access_token is not None
    return made.access_token


async def fault_of(folder: Path, *answers: Callable[[], web.Response]) -> str:
    """The fault after the first of these answers."""
    async with FakeServer(*answers).listening() as url:
        made = files(url, folder)
        async with made.logging_in():
            with pytest.raises(TokenError) as raised:
                made.broker_login()
    fault = str(raised.value)
    begin = f"oauth_token_url: {url}: "
    assert fault.startswith(begin)
    assert fault == token_of(made).fault
    return fault.removeprefix(begin)


class FakeConnection:
    """A connection to the broker, and the secrets that it was given."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.is_closed = False
        self.secrets: list[str] = []
        self._fault = fault

    async def close(self) -> None:
        self.is_closed = True

    async def update_secret(self, new_secret: str, *, reason: str) -> None:
        self.secrets.append(new_secret)
        if self._fault is not None:
            raise self._fault


async def test_the_token_is_the_password_and_the_bearer(tmp_path: Path) -> None:
    server = FakeServer(good)
    async with server.listening() as url:
        made = files(url, tmp_path, broker_url=URL("amqp://me:old@h"), oauth_scope="read write")
        async with made.logging_in():
            assert made.broker_login() == ("me", LONG)
            assert made.management_authorization() == f"Bearer {LONG}"
    assert server.forms == [{"grant_type": "client_credentials", "scope": "read write"}]
    # As RFC 6749 says, in section 2.3.1.
    assert server.authorizations == ["Basic " + base64.b64encode(b"side+car:hush%3A+hush%2F%C3%A9").decode()]


async def test_a_password_file_wins_over_the_token(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("mine\n")
    async with FakeServer(good).listening() as url:
        made = files(url, tmp_path, broker_password_file=tmp_path / "password")
        connection = FakeConnection()
        async with made.logging_in():
            assert made.broker_login() == ("guest", "mine")
            assert made.management_authorization() == f"Bearer {LONG}"
            await made.follow(connection, ("guest", "mine"))
        assert connection.secrets == []


async def test_without_a_server_the_passwords_stay() -> None:
    made = Files(Settings())
    connection = FakeConnection()
    async with made.logging_in():
        assert made.broker_login() == ("guest", "guest")
        assert made.management_authorization() == "Basic " + base64.b64encode(b"guest:guest").decode()
        await made.follow(connection, made.broker_login())
    assert connection.secrets == []


async def test_a_renewed_token_goes_to_what_is_open(tmp_path: Path) -> None:
    numbers = iter(range(100))
    server = FakeServer(lambda: good(f"token-{next(numbers)}", 1))
    async with server.listening() as url:
        made = files(url, tmp_path)
        early, late, closed = FakeConnection(), FakeConnection(), FakeConnection()
        broken = FakeConnection(OSError("it was lost"))
        async with made.logging_in():
            first = made.broker_login()
            for connection in (early, closed, broken):
                await made.follow(connection, first)
            closed.is_closed = True
            await eventually(lambda: len(early.secrets) == 2)
            # It has logged in by the first token, and was not open yet when that was replaced.
            await made.follow(late, first)
            assert late.secrets[0] == made.broker_login()[1]
            await eventually(lambda: len(late.secrets) == 2)
        assert early.secrets[:2] == ["token-1", "token-2"]
        assert late.secrets[0] in ("token-2", "token-3")
        assert broken.secrets[:2] == early.secrets[:2]
        assert closed.secrets == []
        assert token_of(made).successes >= 3
        assert token_of(made).failures == 0


async def test_a_token_counts_until_its_end_and_is_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(access_token, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(access_token, "LONGEST_PAUSE", 0.1)
    server = FakeServer(lambda: good("first", 1), lambda: web.Response(status=503))
    async with server.listening() as url:
        made = files(url, tmp_path)
        token = token_of(made)
        async with made.logging_in():
            connection = FakeConnection()
            await made.follow(connection, made.broker_login())
            await eventually(lambda: token.failures > 0)
            assert token() == "first"
            assert not connection.is_closed
            assert made.management_authorization() == "Bearer first"

            def has_ended() -> bool:
                try:
                    return token() == ""
                except TokenError:
                    return True

            await eventually(has_ended)
            await eventually(lambda: connection.is_closed)
            with pytest.raises(TokenError, match=r"/token: no token: 503$"):
                made.management_authorization()
            server.answers = [lambda: good("second")]
            await eventually(lambda: token.fault == "")
            assert token() == "second"
    # However often it failed, the log says so once.
    assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == [
        f"oauth_token_url: {url}: no token: 503; trying again"
    ]
    assert token.failures > 1


async def test_a_refused_token_is_replaced_before_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_token, "ASKED_DISTANCE", 0.3)
    numbers = iter(range(100))
    server = FakeServer(lambda: good(f"token-{next(numbers)}"))
    async with server.listening() as url:
        made, connection = files(url, tmp_path), FakeConnection()
        began = time.monotonic()
        async with made.logging_in():
            await made.follow(connection, made.broker_login())
            made.refused("another password")
            made.refused("Basic dG9rZW4tMA==")
            await asyncio.sleep(0.4)
            assert made.broker_login()[1] == "token-0"
            # By the broker, and by the management API, which then refuses the old one again.
            made.refused("token-0")
            await eventually(lambda: made.broker_login()[1] == "token-1")
            made.refused("Bearer token-1")
            made.refused("Bearer token-1")
            await eventually(lambda: made.broker_login()[1] == "token-2")
            made.refused("Bearer token-1")
            await asyncio.sleep(0.4)
            assert made.broker_login()[1] == "token-2"
        assert time.monotonic() - began > 2 * 0.3
        assert connection.secrets == ["token-1", "token-2"]
        assert len(server.forms) == 3


async def test_a_token_that_is_refused_stays_while_there_is_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_token, "ASKED_DISTANCE", 0.0)
    monkeypatch.setattr(access_token, "FIRST_PAUSE", 0.02)
    server = FakeServer(lambda: good("first"), lambda: web.Response(status=503), lambda: good("second"))
    async with server.listening() as url:
        made, connection = files(url, tmp_path), FakeConnection()
        async with made.logging_in():
            await made.follow(connection, made.broker_login())
            made.refused("first")
            await eventually(lambda: token_of(made).failures == 1)
            assert made.broker_login()[1] == "first"
            await eventually(lambda: made.broker_login()[1] == "second")
        assert (connection.secrets, connection.is_closed) == (["second"], False)


async def test_sighup_has_a_token_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_token, "ASKED_DISTANCE", 0.0)
    server = FakeServer(lambda: good("first"), lambda: good("second"))
    async with server.listening() as url:
        made = files(url, tmp_path)
        async with made.logging_in():
            watching = asyncio.create_task(made.watch())
            made.asked.set()
            await eventually(lambda: made.broker_login()[1] == "second")
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
    assert len(server.forms) == 2


async def test_a_connection_that_follows_after_the_end_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeServer(lambda: good("first"), lambda: web.Response(status=503))
    async with server.listening() as url:
        made, same, older = files(url, tmp_path), FakeConnection(), FakeConnection()
        async with made.logging_in():
            monkeypatch.setattr(token_of(made), "_ends", 0.0)
            await made.follow(same, ("me", "first"))
            await made.follow(older, ("me", "an older one"))
        assert same.is_closed
        assert older.is_closed
        assert same.secrets == older.secrets == []


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no token": ({"access_token": None}, "access_token: missing, or not a text"),
    "a token that is no text": ({"access_token": 5}, "access_token: missing, or not a text"),
    "two lines": ({"access_token": "to\r\nken"}, "access_token: has a character that no bearer token may have"),
    "a space": ({"access_token": "to ken"}, "access_token: has a character that no bearer token may have"),
    "another kind": ({"token_type": "mac"}, "token_type: 'mac' is not 'Bearer'"),
    "no kind": ({"token_type": None}, "token_type: missing is not 'Bearer'"),
    "text for a life": ({"expires_in": "3600"}, "expires_in: '3600' is not a number of seconds from 1 to 31622400"),
    "a life that is over": ({"expires_in": -1}, "expires_in: -1 is not a number of seconds from 1 to 31622400"),
    "milliseconds": ({"expires_in": 86400 * 10**6}, "expires_in: 86400000000 is not a number of seconds"),
    "true": ({"expires_in": True}, "expires_in: True is not a number of seconds"),
    "long": ({"token_type": "x" * 1000}, f"token_type: '{'x' * 39} is not 'Bearer'"),
}


@pytest.mark.parametrize(("wrong", "told"), MISTAKES.values(), ids=MISTAKES)
async def test_an_answer_with_a_mistake_names_the_field(tmp_path: Path, wrong: dict[str, Any], told: str) -> None:
    assert (await fault_of(tmp_path, lambda: good(**wrong))).startswith(f"no token: {told}")


async def test_a_life_that_is_not_told(tmp_path: Path) -> None:
    answer = {"access_token": "t", "token_type": "bearer"}
    fault = await fault_of(tmp_path, lambda: web.json_response(answer))
    assert fault == "no token: expires_in: missing; have the server tell for how many seconds a token counts"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{", b'"t"', b"\xff", b"[" * 60_000])
async def test_an_answer_that_is_no_object(tmp_path: Path, body: bytes) -> None:
    assert await fault_of(tmp_path, lambda: web.Response(body=body)) == "no token: the answer is not a JSON object"


async def test_an_answer_that_is_huge(tmp_path: Path) -> None:
    fault = await fault_of(tmp_path, lambda: good("x" * MOST_BYTES))
    assert fault == f"no token: longer than {MOST_BYTES} bytes"


REFUSALS: dict[str, tuple[int, Any, str]] = {
    "401": (401, {"error": "invalid_client"}, "401 invalid_client; see oauth_client_id and oauth_client_secret_file"),
    "401 without words": (401, None, "401; see oauth_client_id and oauth_client_secret_file"),
    "400": (
        400,
        {"error": "invalid_scope", "error_description": "none\nof\x1b those"},
        "400 invalid_scope: none of\x1b those; see oauth_scope",
    ),
    "echo": (
        400,
        {"error": "invalid_client", "error_description": f"not {SECRET}!"},
        "400 invalid_client: not ***!; see oauth_client_id and oauth_client_secret_file",
    ),
    "long": (400, {"error": "x" * 1000}, f"400 {'x' * 200}"),
    "no text": (400, {"error": 5}, "400"),
    "redirect": (302, None, "302; the server redirects; name the address itself"),
}


@pytest.mark.parametrize(("status", "body", "told"), REFUSALS.values(), ids=REFUSALS)
async def test_a_refusal_says_what_to_do(tmp_path: Path, status: int, body: Any, told: str) -> None:
    headers = {"Location": "http://elsewhere.invalid/"} if status == 302 else {}
    answer = json.dumps(body).encode() if body is not None else b""
    fault = await fault_of(tmp_path, lambda: web.Response(status=status, body=answer, headers=headers))
    assert fault == f"no token: {told}"


async def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    url = URL(f"http://127.0.0.1:{unused_port()}/token")
    made = files(url, tmp_path)
    with pytest.raises(TokenError, match="oauth_token_url: waiting for an access token"):
        made.broker_login()
    async with made.logging_in():
        with pytest.raises(TokenError, match=r"/token: it refuses connections$"):
            made.broker_login()


async def test_a_server_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_token, "ANSWERED_WITHIN", 0.05)
    hung: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: hung.append(writer), "127.0.0.1", 0)
    async with server:
        made = files(URL(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"), tmp_path)
        async with made.logging_in():
            assert token_of(made).fault.endswith(": no answer within 0.05 s")
        for writer in hung:
            writer.close()


async def test_tls_is_checked_by_ca_file(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path, "trusted"), Authority(tmp_path, "other")
    async with FakeServer(good).listening(ServerTls(*authority.issue("server"), None)) as url:
        made = files(url, tmp_path, ca_file=authority.certificate)
        async with made.logging_in():
            assert made.broker_login() == ("guest", LONG)
        distrusting = files(url, tmp_path, ca_file=other.certificate)
        async with distrusting.logging_in():
            assert "ca_file must name the CA" in token_of(distrusting).fault


async def test_a_new_secret_is_read(tmp_path: Path) -> None:
    server = FakeServer(lambda: good(life=1))
    async with server.listening() as url:
        made = files(url, tmp_path)
        async with made.logging_in():
            (tmp_path / "secret").write_text("another one\n")
            await eventually(lambda: len(server.authorizations) > 1)
    assert server.authorizations[1] == "Basic " + base64.b64encode(b"side+car:another+one").decode()


async def test_a_defect_ends_no_renewing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(access_token, "FIRST_PAUSE", 0.02)
    async with FakeServer(good).listening() as url:
        made = files(url, tmp_path)
        token, looks = token_of(made), iter([ZeroDivisionError])

        def defective() -> str:
            for defect in looks:
                raise defect
            return SECRET

        monkeypatch.setattr(token, "_client_secret", defective)
        async with made.logging_in():
            assert token.fault == "oauth_token_url: unexpected error, see this sidecar's log: ZeroDivisionError"
            await eventually(lambda: token.fault == "")
    assert [r.message for r in caplog.records if r.exc_info] == ["unexpected error while an access token was fetched"]
