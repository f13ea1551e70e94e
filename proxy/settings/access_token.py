"""The access token by which this sidecar's own user logs in: fetched by a client credentials grant, renewed in time.

The grant is one POST to the authorization server, with the id and the secret of a client (RFC 6749, section 4.4). The
answer has a token and its life in seconds. RabbitMQ takes the token for a password, and the management API as a bearer
token (RFC 6750). A token is renewed after two thirds of its life: the last third is left for further tries while the
server is away. It is renewed earlier if it is refused, for example since the server has new keys, or if somebody asks.

A connection to the broker has the token by which it logged in, so a new one must reach three kinds of connections:

- one that is opened later asks for the present token;
- one that is open gets it by connection.update-secret;
- one that is being opened may log in with the old token, and be open only after the new one was sent to all others.
  `follow` therefore takes the token by which a connection has logged in, and compares.

A token that has ended is given to nobody. A login with it would fail like one with a wrong password, and hide that the
authorization server is what is missing. Connections are closed when their token ends without a successor. RabbitMQ 4
closes them itself; 3.10 goes on, and refuses publishes with 403, which would tell publishers that no try will succeed.
"""

import asyncio
import contextlib
import logging
import random
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote_plus
from weakref import WeakSet

import aiohttp
import msgspec

from proxy.settings.config import HIDDEN, Settings
from proxy.settings.connection_faults import in_words
from proxy.settings.http_client import limited, session
from proxy.settings.watched import Renewed

log = logging.getLogger(__name__)

ANSWERED_WITHIN = 5.0
"""The most seconds that the authorization server may take for an answer, and the broker for an update-secret-ok."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Upper limits, in seconds, of the random pause after the first failed try, and after many: it doubles each time."""

ASKED_DISTANCE = 10.0
"""The fewest seconds from the last try to one that is made only because a token was asked for."""

MOST_BYTES: Final = 64 * 1024
"""The most bytes of an answer: a token must fit into a frame, which by default has 128 KiB at most."""

LONGEST_LIFE: Final = 366 * 24 * 3600
"""The most seconds that a token may live: a longer life is one in another unit."""

_RENEWED_AFTER: Final = (0.6, 0.7)
"""The share of a token's life after which it is renewed, at random between these: sidecars may have begun together."""

_EARLY: Final = 1.0
"""The most seconds before its end from which on a token does not count: servers tell the time in whole seconds."""

_MOST_WORDS: Final = 200
"""The most characters of what the authorization server says of an error."""

_ADVICE = {
    "invalid_client": "see oauth_client_id and oauth_client_secret_file",
    "invalid_scope": "see oauth_scope",
    "unauthorized_client": "allow oauth_client_id the grant client_credentials",
    "unsupported_grant_type": "the server does not offer the grant client_credentials",
}
"""The advice for each error, by its code (RFC 6749, section 5.2)."""


class TokenError(OSError):
    """There is no token to log in with. It is like a broker that cannot be reached; the message names the setting."""


class Connection(Protocol):
    """A connection to the broker that has logged in, and can change its secret."""

    @property
    def is_closed(self) -> bool: ...

    async def update_secret(self, new_secret: str, *, reason: str) -> object: ...

    async def close(self) -> None: ...


class Token(NamedTuple):
    """A token, and the seconds that it lives from the moment at which it was asked for."""

    value: str
    life: float


class AccessToken(Renewed):
    """The present token of this sidecar's own user; it lives as long as the process."""

    def __init__(
        self, settings: Settings, client_secret: Callable[[], str], tls: Callable[[], ssl.SSLContext] | None
    ) -> None:
        """Take where to ask, and as whom; nothing is asked before `run`. `client_secret` and `tls` are asked each time.

        Raises AssertionError if the settings name no authorization server.
        """
        super().__init__("oauth_token_url")
        client_id = settings.oauth_client_id
        assert settings.oauth_token_url is not None
        assert client_id is not None
        self._url, self._client_id, self._scope = settings.oauth_token_url, client_id, settings.oauth_scope
        self._client_secret, self._tls = client_secret, tls
        self._value, self._ends = "", 0.0
        """The last token, and until when it counts, in monotonic seconds."""
        self._open: WeakSet[Connection] = WeakSet()
        self.tried = asyncio.Event()
        """Set once the first try to fetch a token has ended, with or without one."""
        self.asked = asyncio.Event()
        """Set to have a token fetched before its time; the present one stays until there is another."""

    def __call__(self) -> str:
        """Return the present token. Raises TokenError if there is none, or if it has ended."""
        if self._left() > 0:
            return self._value
        raise TokenError(self.fault or f"{self.setting}: waiting for an access token")

    async def follow(self, connection: Connection, secret: str) -> None:
        """Give a connection, which has just logged in with `secret`, each new token from now on, while it is open.

        It is closed once its token ends without a new one.
        """
        self._open.add(connection)
        if secret != self._value or self._left() <= 0:
            await self._tell(connection, self._update)

    def refused(self, secret: str) -> None:
        """Have another token fetched if `secret`, with which a login has failed, is the present one."""
        if secret == self._value:
            self.asked.set()

    async def run(self) -> None:
        """Have a token that is in force, for ever."""
        pause = FIRST_PAUSE
        async with session(ANSWERED_WITHIN, 1) as http:
            while True:
                began = time.monotonic()
                if began >= self._ends:
                    await self._tell_all(_close)
                try:
                    token = await self._fetched(http)
                except Exception as error:
                    self._fail(error)
                    due, pause = time.monotonic() + random.uniform(pause / 2, pause), min(2 * pause, LONGEST_PAUSE)
                    if self._left() > 0:
                        due = min(due, self._ends)
                else:
                    due, pause = began + token.life * random.uniform(*_RENEWED_AFTER), FIRST_PAUSE
                    self._value, self._ends = token.value, began + token.life - min(_EARLY, token.life / 10)
                    self.succeeded()
                    log.info("%s: a new access token, for %g s", self.setting, token.life)
                    await self._tell_all(self._update)
                self.tried.set()
                await self._until(due, began + ASKED_DISTANCE)

    async def _until(self, due: float, earliest: float) -> None:
        """Return when a token is due, or before, at the `earliest` moment, if it is asked for."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(due - time.monotonic()):
                await self.asked.wait()
                await asyncio.sleep(earliest - time.monotonic())
        self.asked.clear()

    def _left(self) -> float:
        """Return the seconds for which the present token counts; not above 0 if there is none that does."""
        return self._ends - time.monotonic()

    def _fail(self, error: Exception) -> None:
        """Note why there is no new token, and log it if it is new."""
        fault = str(error)
        if not isinstance(error, TokenError):
            log.error("unexpected error while an access token was fetched", exc_info=error)
            fault = f"{self.setting}: unexpected error, see this sidecar's log: {type(error).__name__}"
        if fault != self.fault:
            log.error("%s; trying again", fault)
        self.failed(fault)

    async def _tell_all(self, tell: "_Tell") -> None:
        await asyncio.gather(*(self._tell(connection, tell) for connection in list(self._open)))

    async def _tell(self, connection: Connection, tell: "_Tell") -> None:
        """Tell a connection something. Never raises: who owns the connection finds out that it is lost."""
        if connection.is_closed:
            return
        try:
            async with asyncio.timeout(ANSWERED_WITHIN):
                await tell(connection)
        except Exception as error:  # aio-pika raises many kinds
            log.warning("access token: a connection to the broker does not follow: %s", in_words(error))

    async def _update(self, connection: Connection) -> None:
        """Give a connection the present token; close it if that has ended."""
        if self._left() > 0:
            await connection.update_secret(self._value, reason="renewed")
        else:
            await connection.close()

    async def _fetched(self, http: aiohttp.ClientSession) -> Token:
        """Return a new token. Raises TokenError."""
        # RFC 6749, section 2.3.1: both are encoded as a form's fields before they are those of HTTP's Basic.
        secret = self._client_secret()
        authorization = aiohttp.encode_basic_auth(quote_plus(self._client_id), quote_plus(secret))
        form = {"grant_type": "client_credentials", **({"scope": self._scope} if self._scope is not None else {})}
        tls = self._tls() if self._tls is not None else True
        # Once the present token has ended, connections are to be closed at once.
        within = min(ANSWERED_WITHIN, left) if (left := self._left()) > 0 else ANSWERED_WITHIN
        try:
            async with http.post(
                self._url,
                data=form,
                headers={"Authorization": authorization},
                ssl=tls,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=within),
            ) as response:
                body = await limited(response, MOST_BYTES)
                if response.status != 200:
                    raise ValueError(refusal(response.status, bytes(body), secret))
                return token_in(bytes(body))
        except TimeoutError:
            why = f"no answer within {within:.2g} s"
        except aiohttp.ClientConnectorError as error:
            # The words of asyncio repeat the address.
            refused = isinstance(error.os_error, ConnectionRefusedError)
            why = "it refuses connections" if refused else in_words(error.os_error)
        except (aiohttp.ClientError, OSError) as error:
            why = in_words(error)
        except ValueError as error:
            why = f"no token: {error}"
        raise TokenError(f"{self.setting}: {self._url}: {why}")


_Tell = Callable[[Connection], Awaitable[None]]


async def _close(connection: Connection) -> None:
    await connection.close()


def token_in(body: bytes) -> Token:
    """Return the token in the body of an answer (RFC 6749, section 5.1). Raises ValueError, which names the field."""
    answer = _object(body)
    if answer is None:
        raise ValueError("the answer is not a JSON object")
    kind = answer.get("token_type")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise ValueError(f"token_type: {_shown(kind)} is not 'Bearer'")
    value = answer.get("access_token")
    if not isinstance(value, str) or not value:
        raise ValueError("access_token: missing, or not a text")
    if not (value.isascii() and value.isprintable()) or " " in value:
        raise ValueError("access_token: has a character that no bearer token may have")
    life = answer.get("expires_in")
    if "expires_in" not in answer:
        raise ValueError("expires_in: missing; have the server tell for how many seconds a token counts")
    if isinstance(life, bool) or not isinstance(life, int | float) or not 1 <= life <= LONGEST_LIFE:
        raise ValueError(f"expires_in: {_shown(life)} is not a number of seconds from 1 to {LONGEST_LIFE}")
    return Token(value, life)


def refusal(status: int, body: bytes, secret: str) -> str:
    """Return why the server gives no token, by its error code and description (RFC 6749, section 5.2).

    The client's secret is hidden in them.
    """
    answer = _object(body) or {}
    parts = [part for name in ("error", "error_description") if isinstance(part := answer.get(name), str)]
    words = " ".join(": ".join(parts).replace(secret, HIDDEN).split())[:_MOST_WORDS]
    if 300 <= status < 400:
        advice = "the server redirects; name the address itself"
    else:
        advice = _ADVICE.get(str(answer.get("error")), _ADVICE["invalid_client"] if status == 401 else "")
    return f"{status}{words and f' {words}'}{advice and f'; {advice}'}"


def _object(body: bytes) -> dict[str, Any] | None:
    """Return the JSON object that a body is; None if it is none."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:40]
