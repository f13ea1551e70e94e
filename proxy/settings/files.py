"""The files that settings name, as they are now: tokens, certificates and passwords; and the logins that follow."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from proxy.settings import watched
from proxy.settings.config import Settings
from proxy.settings.credentials import Authorization, Credentials, basic, credentials, of_url, secret
from proxy.settings.tls import BrokerTls, ServerTls
from proxy.settings.tokens import Access
from proxy.settings.watched import Renewed, Watched

if TYPE_CHECKING:
    from proxy.settings.access_token import AccessToken, Connection

log = logging.getLogger(__name__)

_BEARER = "Bearer "


class Files:
    """The contents of all files that the settings name, read at the start and again when they change."""

    def __init__(self, settings: Settings, *more: Watched[Any]) -> None:
        """Read all files; `more` are watched with them. Raises ConfigError, which names the setting."""
        self.access = Access(settings.tokens_file)
        self.server_tls = server_tls(settings)
        """The TLS of the HTTP and AMQP listeners; None if they speak plain TCP."""
        self._client_side_tls = broker_tls(settings)
        encrypted = settings.broker_url.scheme == "amqps", settings.management_encrypted
        self.broker_tls, self.management_tls = (self._client_side_tls if it_is else None for it_is in encrypted)
        """TLS towards the broker and the management API, asked at each connect; None for plain TCP."""
        self.broker_login: Credentials = credentials(
            "broker_password_file", settings.broker_url, settings.broker_password_file
        )
        """The login of HTTP publishes, asked for each connection; AMQP clients bring their own.

        It raises OSError while there is none, since the authorization server has given no token.
        """
        management_login = credentials(
            "management_password_file", settings.management_url[0], settings.management_password_file
        )
        self.management_authorization: Authorization = basic(management_login)
        """The header by which the management API is asked, for each request; it raises OSError like `broker_login`."""
        tls = [it.watched for it in (self.server_tls, self._client_side_tls) if it is not None]
        every: list[object] = [*more, self.access.tokens, *tls, self.broker_login, management_login]
        self._has_broker_password = settings.broker_password_file is not None
        self.access_token: AccessToken | None = None
        """The token that replaces passwords; None without an authorization server."""
        if settings.oauth_token_url is not None:
            every.append(self._log_in_by_token(settings))
        self.watched: list[Watched[Any]] = [it for it in every if isinstance(it, Watched) and it.files]
        """The contents that have files, to be read again when these change."""
        self.asked = asyncio.Event()
        """Set to have all files read again at once, whether they have changed or not, and an access token fetched."""

    def _log_in_by_token(self, settings: Settings) -> Watched[str]:
        """Have an access token replace the passwords; return the secret by which it is fetched. Raises ConfigError."""
        # Imported only where it is needed: aiohttp takes a tenth of a second, which a command would wait for.
        from proxy.settings.access_token import AccessToken

        file = settings.oauth_client_secret_file
        client_secret = Watched("oauth_client_secret_file", [file], lambda: client_secret_in(settings))
        token = self.access_token = AccessToken(settings, client_secret, self._client_side_tls)
        user, _ = of_url(settings.broker_url)
        if settings.broker_password_file is None:
            self.broker_login = lambda: (user, token())
        if settings.management_password_file is None:
            self.management_authorization = lambda: f"{_BEARER}{token()}"
        return client_secret

    @contextlib.asynccontextmanager
    async def logging_in(self) -> AsyncIterator[None]:
        """Fetch and renew the access token, if there is one; the context begins once the first try has ended."""
        if self.access_token is None:
            yield
            return
        renewing = asyncio.create_task(self.access_token.run())
        try:
            await self.access_token.tried.wait()
            yield
        finally:
            renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await renewing

    async def follow(self, connection: "Connection", login: tuple[str, str]) -> None:
        """Have a connection, which has just been opened with this login, get each new access token, if there is one."""
        if self.access_token is not None and not self._has_broker_password:
            await self.access_token.follow(connection, login[1])

    def refused(self, secret: str) -> None:
        """Have another access token fetched if the present one was refused as this password or HTTP Authorization."""
        if self.access_token is not None:
            self.access_token.refused(secret.removeprefix(_BEARER))

    def renewed(self) -> list[Renewed]:
        """Return all that is read or fetched again while the sidecar runs."""
        return [*self.watched, *([self.access_token] if self.access_token is not None else [])]

    def certificate_ends(self) -> dict[str, float]:
        """Return when the certificates that this sidecar shows end, in seconds since 1970, by the setting.

        They are the certificates in force, which differ from those in the files if the files have a mistake.
        """
        shown = {"tls_cert_file": self.server_tls, "client_cert_file": self._client_side_tls}
        ends = {setting: tls.watched.value.ends for setting, tls in shown.items() if tls is not None}
        return {setting: at for setting, at in ends.items() if at is not None}

    async def watch(self) -> None:
        """Look at the files, for ever, so that a mistake in one shows before it is needed."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(watched.LOOK_INTERVAL):
                    await self.asked.wait()
            asked = self.asked.is_set()
            self.asked.clear()
            for each in self.watched:
                try:
                    each.refresh(asked=asked)
                except Exception:
                    log.exception("unexpected error while reading files again; what was read before stays in force")
            if asked and self.access_token is not None:
                self.access_token.asked.set()


def server_tls(settings: Settings) -> ServerTls | None:
    """Return the listeners' TLS; None if they speak plain TCP. Raises ConfigError."""
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    return ServerTls(settings.tls_cert_file, settings.tls_key_file, settings.client_ca_file)


def client_secret_in(settings: Settings) -> str:
    """Return the secret by which an access token is fetched. Raises ConfigError; without its setting AssertionError."""
    assert settings.oauth_client_secret_file is not None
    return secret("oauth_client_secret_file", settings.oauth_client_secret_file)


def broker_tls(settings: Settings) -> BrokerTls | None:
    """Return the TLS towards what this sidecar connects to; None if nothing of it is encrypted. Raises ConfigError."""
    if not settings.reaches_by_tls:
        return None
    return BrokerTls(settings.ca_file, settings.client_cert_file, settings.client_key_file)
