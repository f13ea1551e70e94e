"""The management API's own publish, for programs that were written for it: they change the port and no more.

Requests and answers were tried on RabbitMQ 4.3.6 and 3.10.8; where these differ, the endpoint does as 4.3.6. Its
credentials are a broker user's, and the broker judges them: the message goes out on a connection of that user's own,
with that user's permissions. Until the broker has let the user in, a request holds nothing that is another's: its body
is not read, and it counts in no limit but that of connections.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

from aiohttp import BasicAuth, web

from proxy.http.admission.gate import Admitted, Gate, peer_of
from proxy.http.formats.decoding import AmbiguousError, DecodingError, decode_json
from proxy.http.formats.fields import from_base64, properties_of, unsized_short_string
from proxy.http.formats.message import Message
from proxy.http.formats.problems import ProblemError, too_large, unavailable
from proxy.http.sending.dispatch import Dispatch
from proxy.http.sending.receipts import is_gone, judged
from proxy.http.sending.single import Single
from proxy.outcome import Outcome
from proxy.publisher.channel import CONFIRMED, PublishResult
from proxy.publisher.pool import Login, LoginRefused
from proxy.settings.config import Settings
from proxy.wire.frames import ACCESS_REFUSED, CONTENT_TOO_LARGE, NOT_FOUND, PRECONDITION_FAILED
from proxy.wire.properties import (
    NAMES,
    SHORT_STRING,
    Header,
    Properties,
    PropertyError,
    encoded,
    encoded_short_string,
    shown,
    utf8,
)

_REQUIRED = ("routing_key", "properties", "payload", "payload_encoding")
_DEFAULT_EXCHANGE = "amq.default"
_OFF = (
    "management_publish: this sidecar takes no publishes of broker users; with tokens_file or client_ca_file set, it "
    "takes them only where management_publish = true. /v1/exchanges/{exchange}/publish takes a token"
)
_NACKED = "rejected Unable to publish message. Check queue limits."

_INTERNAL = "403 ACCESS_REFUSED - cannot publish to internal exchange"

_DOUBLY = "invalid payload: the request body JSON-decoded to a string. Is the input doubly-JSON-encoded?"

_NUMBERS = frozenset({"delivery_mode", "priority", "timestamp"})
"""The properties that are whole numbers; all others but the headers are strings."""

_CLUSTER_ID = 1 << 2
"""The flag of the property `cluster_id`, which AMQP has reserved, and which RabbitMQ passes on."""


_LONGEST_PASSWORD = 3072
"""The most bytes of a password, which may be an access token. RabbitMQ before 4.1 takes 4,096 bytes in the frame of a
login, of which user, virtual host and client properties take up to 850."""


class _BadError(ProblemError):
    """A 400 whose `reason` is worded as the management API words it."""

    def __init__(self, reason: object) -> None:
        super().__init__(400, "bad-request", str(reason), Outcome.INVALID)
        self.reason = reason


class _NoExchangeError(ProblemError):
    """A 404 for an exchange that does not exist, as RabbitMQ 4.3 words it."""

    def __init__(self) -> None:
        super().__init__(404, "not-found", "exchange_not_found", Outcome.INVALID)


class ManagementEndpoint:
    """The endpoint ``POST /api/exchanges/{vhost}/{name}/publish`` of the management API."""

    def __init__(self, gate: Gate, dispatch: Dispatch, settings: Settings) -> None:
        self._gate, self._dispatch, self._settings = gate, dispatch, settings

    async def answer(self, request: web.Request) -> web.Response:
        """Return whether a queue took the message, or an error as the management API words it."""
        try:
            with self._gate.admitted(0) as admitted:
                if not self._settings.takes_management_publish:
                    raise ProblemError(403, "forbidden", _OFF, Outcome.INVALID)
                # A browser may know a login, and sends it along.
                self._gate.refuse_pages(request)
                login = _login(request)
                vhost, exchange = (_name(part) for part in request.rel_url.raw_path.split("/")[3:5])
                name = vhost, "" if exchange == _DEFAULT_EXCHANGE else exchange
                await self._let_in(request, name, login)
                self._gate.begin(admitted)
                message = _message(await self._gate.body(request, admitted, self._gate.sizes.max_body), login[0])
                return _json(200, {"routed": await self._routed(admitted, name, login, message)})
        except ProblemError as problem:
            if problem.delay:
                await asyncio.sleep(problem.delay)
            return _error(problem)

    async def _let_in(self, request: web.Request, name: tuple[str, str], login: Login) -> None:
        """Return once the broker has let the user in. Raises ProblemError 429, or 503 caused by LoginRefused."""
        guesses = self._gate.guesses
        known = guesses.has_worked(login)
        if not known:
            self._gate.allow_guess(request, "login")
        try:
            await self._dispatch.log_in(await self._dispatch.exchange_handle(name, login))
        except ProblemError as problem:
            refused = problem.__cause__
            if isinstance(refused, LoginRefused) and refused.code == ACCESS_REFUSED:
                problem.delay = guesses.failed(peer_of(request), "login", login[0])
            raise
        if not known:
            guesses.worked(login)

    async def _routed(self, admitted: Admitted, name: tuple[str, str], login: Login, message: Message) -> bool:
        """Publish a message as the user `login`; return whether a queue took it.

        Raises ProblemError, in the management API's words, for any other end.
        """
        self._gate.hold(admitted, message.size)
        handle = await self._dispatch.exchange_handle(name, login)
        single = Single(self._dispatch, handle, message, self._gate.loop)
        try:
            await single.send()
        except ProblemError as problem:
            raise _worded(problem, name) from problem.__cause__
        admitted.name = name
        result = await single.result()
        if result is CONFIRMED:
            return True
        admitted.counted = result.outcome is not Outcome.INVALID
        result = judged(single.placement, result)
        if is_gone(result):
            await self._dispatch.read_again(single.placement, "a message did not reach it")
        if result.outcome is Outcome.UNROUTABLE:
            self._gate.count(name, result.outcome)
            return False
        raise _problem(result, is_passed=single.placement.sent_as is None)


def _worded(problem: ProblemError, name: tuple[str, str]) -> ProblemError:
    """Return the problem of a message that was not sent, in the management API's words if it has any for that."""
    match problem.kind:
        case "too-large":
            # The broker's own limit, who is not asked any more once it is known.
            return _BadError(f"{PRECONDITION_FAILED} {problem.detail.removeprefix('body: ')}")
        case "unknown-exchange":
            return _NoExchangeError()
        case "internal-exchange":
            return _BadError(f"{_INTERNAL} '{name[1]}' in vhost '{name[0]}'")
    return problem


def _problem(result: PublishResult, *, is_passed: bool) -> ProblemError:
    """Return the problem of a message that was sent; `is_passed` says that it was sent to the exchange itself."""
    match result.outcome:
        case Outcome.INVALID if result.code == NOT_FOUND and is_passed:
            return _NoExchangeError()
        case Outcome.INVALID:
            code = PRECONDITION_FAILED if result.code == CONTENT_TOO_LARGE else result.code
            return _BadError(f"{code} {result.detail}")
        case Outcome.NACKED:
            return ProblemError(400, "nacked", _NACKED, result.outcome, retryable=True)
        case Outcome.UNAVAILABLE:
            return unavailable(result.detail)
    return ProblemError(504, "unknown", result.detail, result.outcome, retryable=True)


def _login(request: web.Request) -> Login:
    """Return the name and password of the request's Basic credentials. Raises ProblemError 401."""
    try:
        given = BasicAuth.decode(request.headers.get("Authorization", ""), encoding="utf-8")
    except ValueError:
        raise ProblemError(
            401, "unauthorized", "Authorization: the name and password of a broker user are missing", Outcome.INVALID
        ) from None
    if "\0" in given.login + given.password:
        raise ProblemError(
            401, "unauthorized", "Authorization: the name or password has a NUL character", Outcome.INVALID
        )
    for what, value, most in (("name", given.login, SHORT_STRING), ("password", given.password, _LONGEST_PASSWORD)):
        if len(value.encode()) > most:
            detail = f"Authorization: a {what} of more than {most} bytes"
            raise ProblemError(401, "unauthorized", detail, Outcome.INVALID)
    return given.login, given.password


def _name(part: str) -> str:
    """Return the name that a part of a URL's path stands for, decoded. Raises _BadError."""
    try:
        name = unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise _BadError(f"{part[:60]!r} is not UTF-8") from None
    if (size := len(name.encode())) > SHORT_STRING:
        # Cut to what AMQP can say, it would be another one's.
        raise _BadError(f"{name[:40]!r}... has {size} bytes, {SHORT_STRING} are the most")
    if name in (".", ".."):
        raise _BadError(f"404 NOT_FOUND - no page for {name!r}")
    return name


def _message(body: bytes, user: str) -> Message:
    """Return the message that the body asks to publish. Raises ProblemError 400 or 413."""
    try:
        fields = decode_json(body or b"{}")
    except DecodingError as error:
        if error.too_large:
            raise too_large(f"body: {error}") from None
        # RabbitMQ takes the last of two values for one key.
        raise _BadError(str(error) if isinstance(error, AmbiguousError) else "not_json") from None
    if isinstance(fields, str):
        raise _BadError(_DOUBLY)
    if fields is None:
        fields = {}
    if not isinstance(fields, dict):
        raise _BadError("not_json")
    missing = ",\n ".join(f"{{key_missing,{name}}}" for name in _REQUIRED if name not in fields)
    if missing:
        raise _BadError(f"[{missing}]")
    try:
        key = unsized_short_string(fields["routing_key"])
        return Message(key, Header.of(_properties(fields["properties"], user)), _payload(fields))
    except PropertyError as error:
        raise _BadError(str(error)) from None


def _properties(given: object, user: str) -> Properties:
    """Return the properties that AMQP knows, encoded; others are ignored, as the management API does.

    PHP writes an empty array for no headers. Raises PropertyError, or ProblemError in the management API's words.
    """
    if not isinstance(given, Mapping):
        raise PropertyError("properties: not an object")
    known: dict[str, Any] = {name: value for name, value in given.items() if name in NAMES or name == "cluster_id"}
    if known.get("headers") == []:
        del known["headers"]
    for name, value in known.items():
        kind, what = (int, "not_int") if name in _NUMBERS else (str, "not_string")
        if name != "headers" and type(value) is not kind:
            raise _BadError([what, name])
    own: Properties = {}
    if (named := known.pop("user_id", user)) != user:
        said = f"user_id property set to '{named[:60]}' but authenticated user was '{user}'"
        raise _BadError(f"{PRECONDITION_FAILED} PRECONDITION_FAILED - {said}")
    if "user_id" in given:
        own = dict((encoded("user_id", user),))
    if "cluster_id" in known:
        try:
            own[_CLUSTER_ID] = encoded_short_string(known.pop("cluster_id"))
        except PropertyError as error:
            raise PropertyError(f"properties.cluster_id: {error}") from None
    return properties_of(known, "properties.") | own


def _payload(fields: Mapping[str, Any]) -> bytes:
    """Return the bytes to publish, by the fields `payload` and `payload_encoding`. Raises _BadError."""
    payload, encoding = fields["payload"], fields["payload_encoding"]
    if not isinstance(payload, str):
        raise _BadError("payload_not_string")
    if encoding == "string":
        return utf8(payload)
    if encoding != "base64":
        raise _BadError(["unsupported_encoding", _echoed(encoding)])
    text = payload
    for space in " \t\r\n":
        # It may be in lines, as the program `base64` writes it.
        text = text.replace(space, "")
    try:
        return from_base64(text)
    except PropertyError:
        raise _BadError(["not_base64", payload[:60]]) from None


def _echoed(value: object) -> str | int | None:
    """Return a value as the management API repeats it in an error, cut short if it may be large; null is None."""
    if isinstance(value, str):
        return value[:60]
    return value if value is None or isinstance(value, int) else shown(value)


def _error(problem: ProblemError) -> web.Response:
    """Return the answer to a problem, in the management API's form with our `outcome` and `retryable`."""
    status, error, reason = problem.status, problem.kind.replace("-", "_"), getattr(problem, "reason", problem.detail)
    headers = {}
    refused = problem.__cause__
    if isinstance(refused, LoginRefused):
        status, error = 401, "not_authorized"
        reason = "Login failed" if refused.code == ACCESS_REFUSED else "Access refused."
    elif status == 401:
        error = "not_authorized"
    elif problem.outcome is Outcome.NACKED:
        error = "bad_request"
    if status == 401:
        headers["WWW-Authenticate"] = 'Basic realm="RabbitMQ Management"'
    elif status in (429, 503):
        headers["Retry-After"] = "1"
    outcome, retryable = (Outcome.INVALID, False) if status == 401 else (problem.outcome, problem.retryable)
    answer = _json(status, {"error": error, "reason": reason, "outcome": outcome, "retryable": retryable}, headers)
    if problem.closes:
        answer.force_close()
    return answer


def _json(status: int, answer: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> web.Response:
    """Return an answer in JSON, written without spaces as the management API writes it."""
    return web.Response(
        body=json.dumps(answer, separators=(",", ":")).encode(),
        status=status,
        content_type="application/json",
        headers=headers,
    )
