"""The files that settings name, as they are now: tokens, certificates and passwords."""

import asyncio
import contextlib
import logging
from typing import Any

from proxy.settings import watched
from proxy.settings.config import Settings
from proxy.settings.credentials import credentials
from proxy.settings.tls import BrokerTls, ServerTls
from proxy.settings.tokens import Access
from proxy.settings.watched import Watched

log = logging.getLogger(__name__)


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
        self.broker_login = credentials("broker_password_file", settings.broker_url, settings.broker_password_file)
        """The login of HTTP publishes, asked for each connection; AMQP clients bring their own."""
        self.management_login = credentials(
            "management_password_file", settings.management_url[0], settings.management_password_file
        )
        tls = [it.watched for it in (self.server_tls, self._client_side_tls) if it is not None]
        every: list[object] = [*more, self.access.tokens, *tls, self.broker_login, self.management_login]
        self.watched: list[Watched[Any]] = [it for it in every if isinstance(it, Watched) and it.files]
        """The contents that have files, to be read again when these change."""
        self.asked = asyncio.Event()
        """Set to have all files read again at once, whether they have changed or not."""

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


def server_tls(settings: Settings) -> ServerTls | None:
    """Return the listeners' TLS; None if they speak plain TCP. Raises ConfigError."""
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    return ServerTls(settings.tls_cert_file, settings.tls_key_file, settings.client_ca_file)


def broker_tls(settings: Settings) -> BrokerTls | None:
    """Return the TLS towards the broker and the management API; None if neither is encrypted. Raises ConfigError."""
    if settings.broker_url.scheme != "amqps" and not settings.management_encrypted:
        return None
    return BrokerTls(settings.ca_file, settings.client_cert_file, settings.client_key_file)
