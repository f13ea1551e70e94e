"""What the files that settings name hold: tokens, certificates and passwords, as they are now."""

import asyncio
import logging

from proxy.access import Access
from proxy.config import Settings
from proxy.credentials import credentials
from proxy.tls import ServerTls, client_tls
from proxy.watched import LOOK_INTERVAL

log = logging.getLogger(__name__)


class Files:
    """All of them, read at the start and again when they change."""

    def __init__(self, settings: Settings) -> None:
        """Reads them. Raises ConfigError, which names the setting."""
        self.access = Access(settings.tokens_file)
        self.server_tls: ServerTls | None = None
        """Of the HTTP and AMQP listeners; None where they speak plain TCP."""
        if settings.tls_cert_file is not None and settings.tls_key_file is not None:
            self.server_tls = ServerTls(settings.tls_cert_file, settings.tls_key_file, settings.client_ca_file)
        encrypted = settings.broker_url.scheme == "amqps", settings.management_url.scheme == "https"
        context = None
        if any(encrypted):
            context = client_tls(settings.ca_file, settings.client_cert_file, settings.client_key_file)
        self.broker_tls, self.management_tls = (context if it_is else None for it_is in encrypted)
        """Asked at each connect; None for plain TCP."""
        self.broker_login = credentials("broker_password_file", settings.broker_url, settings.broker_password_file)
        """Asked at each login for publishes over HTTP; AMQP clients bring their own."""
        self.management_login = credentials(
            "management_password_file", settings.management_url, settings.management_password_file
        )

    async def watch(self) -> None:
        """Looks at those files, for ever, that nothing looks at when it uses what they hold."""
        looks = [self.access.refresh, *([self.server_tls.refresh] if self.server_tls else [])]
        while True:
            await asyncio.sleep(LOOK_INTERVAL)
            for look in looks:
                try:
                    look()
                except Exception:
                    log.exception("a defect while reading files again; what was read before stays in force")
