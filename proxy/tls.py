"""TLS contexts of the listeners and of the ways to the broker and the management API, made anew when files change."""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from proxy.values import ConfigError
from proxy.watched import Watched, content

_MARK = b"-----BEGIN CERTIFICATE-----"


class Own(NamedTuple):
    """A certificate to show, and the names of the settings that its files come from."""

    certificate: Path
    key: Path
    settings: tuple[str, str]


class ServerTls:
    """TLS of the listeners. A connection is shown what the files said when it came."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None) -> None:
        """With `client_ca`, clients must show a certificate that it vouches for. Raises ConfigError."""
        own = Own(certificate, key, ("tls_cert_file", "tls_key_file"))
        self._watched = Watched([certificate, key, client_ca], lambda: _server_context(own, client_ca))
        self.context = _server_context(own, client_ca)
        """For the listeners, for good: it hands each connection over to the newest."""
        # No tickets: a resumed session brings along a client certificate that the files of now may not vouch for. (TLS
        # 1.2 resumes without tickets too, and Python has no switch for that.)
        self.context.options |= ssl.OP_NO_TICKET
        self.context.num_tickets = 0
        self.context.sni_callback = self._hand_over

    def refresh(self) -> None:
        """Reads the files again if they have changed."""
        self._watched.refresh()

    def _hand_over(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Called in every handshake, whether the client names a server or not."""
        connection.context = self._watched.value


def client_tls(ca: Path | None, certificate: Path | None, key: Path | None) -> Callable[[], ssl.SSLContext]:
    """Gives the context for the next connection to the broker or the management API, as the files now are.

    The same object as long as they do not change. Raises ConfigError, and later never: the last good one stays.
    """
    own = Own(certificate, key, ("client_cert_file", "client_key_file")) if certificate and key else None
    return Watched([ca, certificate, key], lambda: _client_context(ca, own)).refresh


def _server_context(own: Own, client_ca: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _show(context, own)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        _trust(context, "client_ca_file", client_ca)
    return context


def _client_context(ca: Path | None, own: Own | None) -> ssl.SSLContext:
    if ca is None:
        context = ssl.create_default_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _trust(context, "ca_file", ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if own is not None:
        _show(context, own)
    return context


def _show(context: ssl.SSLContext, own: Own) -> None:
    """Loads a certificate and its key, as they are in the files now."""
    for_certificate, for_key = own.settings
    # What is wrong with the certificate shows here, and what is wrong below is the key then.
    _trust(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), for_certificate, own.certificate)
    content(for_key, own.key)
    try:
        # The empty password: a key that wants one is refused here, and not asked for on a terminal.
        context.load_cert_chain(own.certificate, own.key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            why = f"is not the key of {for_certificate}"
        else:
            why = f"is no private key (PEM, without a password) that fits {for_certificate}"
        raise ConfigError(f"{for_key}: {str(own.key)!r} {why}") from None
    except OSError as error:
        raise ConfigError(f"{for_key}: {str(own.key)!r} cannot be read: {error.strerror}") from None


def _trust(context: ssl.SSLContext, setting: str, ca: Path) -> None:
    """Trusts the certificates in a file, and no others that the context does not trust yet."""
    if _MARK not in content(setting, ca):
        raise ConfigError(f"{setting}: {str(ca)!r} has no certificate (PEM)")
    try:
        context.load_verify_locations(ca)
    except (ssl.SSLError, OSError):
        raise ConfigError(f"{setting}: {str(ca)!r} has a certificate that cannot be read") from None
