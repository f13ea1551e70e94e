"""`ring-proxy config --check`: reads every file that the settings name, as a start would, and changes nothing."""

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from proxy.journal.files import check_folder
from proxy.journal.journaling import key_form
from proxy.settings.config import Settings
from proxy.settings.credentials import credentials
from proxy.settings.files import broker_tls, client_secret_in, server_tls
from proxy.settings.parse import ConfigError
from proxy.settings.tokens import Access
from proxy.topology import ring_cache
from proxy.tracing import tracing


def mistakes(settings: Settings) -> list[str]:
    """Return what is wrong with the files that the settings name, each in a line that begins with the setting.

    `config --check` prints it. A sidecar of the same user starts where this is empty, unless an address is taken. A
    certificate that has ended counts as a mistake: a sidecar would start with it, and no client that verifies it would
    connect.
    """
    found: dict[str, None] = {}
    for check in _checks(settings):
        try:
            check()
        except ConfigError as error:
            found[str(error)] = None  # once, where two of them find it
    return list(found)


def _checks(settings: Settings) -> list[Callable[[], object]]:
    """Return what each raises ConfigError for a mistake of its own, so that none hides another."""
    checks: list[Callable[[], object]] = [
        partial(Access, settings.tokens_file),
        partial(_listeners, settings),
        partial(_brokers, settings),
        partial(credentials, "broker_password_file", settings.broker_url, settings.broker_password_file),
        partial(credentials, "management_password_file", settings.management_url[0], settings.management_password_file),
        *([partial(client_secret_in, settings)] if settings.oauth_token_url is not None else []),
        settings.with_secrets,
        partial(key_form, settings),
        partial(tracing.check, settings),
    ]
    if settings.journal_dir is not None:
        checks.append(partial(check_folder, settings.journal_dir))
    if settings.ring_cache_dir is not None:
        checks.append(partial(ring_cache.check_folder, settings.ring_cache_dir))
    if settings.http_socket is not None:
        checks.append(partial(_socket, settings.http_socket))
    return checks


def _listeners(settings: Settings) -> None:
    if (tls := server_tls(settings)) is not None:
        _not_over("tls_cert_file", settings.tls_cert_file, tls.watched.value.ends)


def _brokers(settings: Settings) -> None:
    if (tls := broker_tls(settings)) is not None:
        _not_over("client_cert_file", settings.client_cert_file, tls.watched.value.ends)


def _not_over(setting: str, file: Path | None, ends: float | None) -> None:
    if ends is not None and ends < time.time():
        at = datetime.fromtimestamp(ends, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        raise ConfigError(f"{setting}: the certificate in {str(file)!r} ended at {at}")


def _socket(path: Path) -> None:
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK, effective_ids=True):
        raise ConfigError(
            f"http_socket: {str(path)!r} cannot be made, since {str(path.parent)!r} is not a folder that this user may "
            "write to"
        )
