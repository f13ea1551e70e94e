"""The tokens file: bearer tokens of HTTP, each with the virtual hosts and exchanges that it is for."""

import hashlib
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from proxy.settings.contents import secret_content
from proxy.settings.parse import ConfigError, parse_patterns
from proxy.settings.patterns import Mode, Selection
from proxy.settings.watched import Watched

DECISIONS = 10_000
"""Most decisions that are remembered, by token, virtual host and exchange."""

_FIELDS = {"name", "token", "sha256", "publish"}

# RFC 6750, section 2.1: all that may stand in a header.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)
_BEARER = re.compile(r"bearer +([A-Za-z0-9._~+/-]+=*) *", re.ASCII | re.IGNORECASE)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII | re.IGNORECASE)


class Unauthorized(Exception):  # noqa: N818 - the caller turns it into an answer
    """No token was presented, or none that is known; the message says which."""


class UnknownToken(Unauthorized):
    """A token was presented that is not in the file."""


class Forbidden(Exception):  # noqa: N818
    """The token may not publish there; the message names the token and the place."""


class Token(NamedTuple):
    """One token of the file, and the places where it may publish."""

    name: str
    publish: Selection


class Tokens:
    """The tokens of one file, by their SHA-256."""

    def __init__(self, tokens: dict[bytes, Token], worked: set[bytes]) -> None:
        """Take the tokens by digest; `worked` are digests of tokens presented before, of this or an earlier file.

        Tokens are looked up by digest, so that the time of a look-up tells nothing of any token.
        """
        self._tokens, self._worked = tokens, worked
        self._decisions: dict[tuple[str, str, str], bool] = {}

    def check(
        self, authorization: str | None, vhost: str, exchange: str, guess: Callable[[], None] = lambda: None
    ) -> None:
        """Check that the token of an Authorization header may publish to an exchange. Raises Unauthorized or Forbidden.

        `guess` is called before a token is looked up that has not been right before; what it raises ends the check.
        """
        if authorization is None:
            raise Unauthorized("Authorization: the header is missing; send `Authorization: Bearer TOKEN`")
        presented = _BEARER.fullmatch(authorization)
        if presented is None:
            raise Unauthorized("Authorization: not of the form `Bearer TOKEN`")
        digest = hashlib.sha256(presented[1].encode()).digest()
        if digest not in self._worked:
            guess()
        token = self._tokens.get(digest)
        if token is None:
            raise UnknownToken("Authorization: the token is not in this sidecar's tokens_file")
        self._worked.add(digest)
        asked = token.name, vhost, exchange
        allowed = self._decisions.get(asked)
        if allowed is None:
            allowed = token.publish.mode(vhost, exchange) is Mode.ROUTE
            if len(self._decisions) >= DECISIONS:
                self._decisions.clear()
            self._decisions[asked] = allowed
        if not allowed:
            raise Forbidden(f"exchange: token {token.name!r} may not publish to {exchange!r} of virtual host {vhost!r}")


class Access:
    """The permissions to publish over HTTP, from the present tokens file; without a file everyone may publish."""

    def __init__(self, file: Path | None) -> None:
        """Read the file. Raises ConfigError."""
        # As many as there ever are tokens.
        worked: set[bytes] = set()
        self.tokens = Watched("tokens_file", [file], lambda: read_tokens(file, worked)) if file is not None else None
        """The tokens of the file, read again when it changes; None if no file is set."""

    @property
    def is_open(self) -> bool:
        """Whether everyone may publish, because no tokens file is set."""
        return self.tokens is None

    def check(
        self, authorization: str | None, vhost: str, exchange: str, guess: Callable[[], None] = lambda: None
    ) -> None:
        """Check that an Authorization header may publish to an exchange; any may if no tokens file is set.

        Raises Unauthorized or Forbidden. `guess` is called before a token is looked up that has not been right before;
        what it raises ends the check.
        """
        if self.tokens is not None:
            self.tokens.value.check(authorization, vhost, exchange, guess)


def read_tokens(file: Path, worked: set[bytes] | None = None) -> Tokens:
    """Return the tokens of a TOML file; `worked` is passed on to `Tokens`.

    Raises ConfigError, which names file, token and field, and shows no token.
    """
    where = f"tokens_file: {str(file)!r}"
    text = secret_content("tokens_file", file)
    try:
        table = tomllib.loads(text.decode())
    except UnicodeDecodeError:
        raise ConfigError(f"{where} is not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not TOML: {error}") from None
    entries = table.pop("tokens", None)
    if table:
        raise ConfigError(f"{where}: unknown {min(table)!r}; the file takes [[tokens]] only")
    # A file without any is one that is being written, or a mistake: nobody wants a listener that refuses everyone.
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f"{where}: has no [[tokens]]")
    tokens: dict[bytes, Token] = {}
    for number, entry in enumerate(entries, 1):
        name = _name(f"{where}: token {number}", entry)
        place = f"{where}: token {name!r}"
        if name in (token.name for token in tokens.values()):
            raise ConfigError(f"{place}: name: another token has the same name")
        digest = _digest(place, entry)
        if digest in tokens:
            raise ConfigError(f"{place}: token: it has the same value as token {tokens[digest].name!r}")
        tokens[digest] = Token(name, _publish(place, entry))
    return Tokens(tokens, set() if worked is None else worked)


def _name(where: str, entry: dict[str, Any]) -> str:
    name = entry.get("name")
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ConfigError(f"{where}: name: {'not a line of text' if 'name' in entry else 'missing'}")
    return name


def _digest(where: str, entry: dict[str, Any]) -> bytes:
    """Return the SHA-256 of an entry's token, 32 bytes, from the field `token` or the field `sha256`.

    Raises ConfigError, which begins with `where`, for a mistake, an unknown field, and for both fields or neither.
    """
    for field in entry:
        if field not in _FIELDS:
            raise ConfigError(f"{where}: unknown field {field!r}")
    token, digest = entry.get("token"), entry.get("sha256")
    if (token is None) == (digest is None):
        raise ConfigError(f"{where}: token: give either token or sha256")
    if token is not None:
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise ConfigError(f"{where}: token: has a character other than letters, digits and -._~+/")
        return hashlib.sha256(token.encode()).digest()
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        raise ConfigError(f"{where}: sha256: not 64 hexadecimal digits")
    return bytes.fromhex(digest)


def _publish(where: str, entry: dict[str, Any]) -> Selection:
    """Return the exchanges that an entry lets its token publish to. Raises ConfigError that begins with `where`."""
    try:
        patterns = parse_patterns(entry.get("publish", []))
    except ConfigError as error:
        raise ConfigError(f"{where}: publish: {error}") from None
    if not patterns:
        raise ConfigError(f"{where}: publish: has no pattern of exchanges; '*' stands for every exchange")
    # The same patterns as the setting `route`, so the same reading of them.
    return Selection(patterns, (), ())
