"""TLS contexts of the listeners and of the ways to the broker and the management API, made anew when files change."""

import ssl
from pathlib import Path
from typing import NamedTuple

from proxy.settings.certificates import end_of
from proxy.settings.contents import content, secret_content
from proxy.settings.parse import ConfigError
from proxy.settings.watched import Watched

_MARK = b"-----BEGIN CERTIFICATE-----"


class Own(NamedTuple):
    """A certificate to show, and the names of the settings that its files come from."""

    certificate: Path
    key: Path
    settings: tuple[str, str]


class Made(NamedTuple):
    """A TLS context, made of the files as they were at one time."""

    context: ssl.SSLContext
    ends: float | None
    """When the context's certificate ends, in seconds since 1970; None if it has none, or the end cannot be read."""


class ServerTls:
    """TLS of the listeners. A connection gets the certificate that was in the files when it came."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None) -> None:
        """Read the files; with `client_ca`, clients must show a certificate that it signed. Raises ConfigError."""
        own = Own(certificate, key, ("tls_cert_file", "tls_key_file"))
        self.watched = Watched(own.settings[0], [certificate, key, client_ca], lambda: _server_context(own, client_ca))
        self.context = _server_context(own, client_ca).context
        """The context that listeners keep for good: it hands each handshake over to the newest one."""
        # No tickets: a resumed session brings along a client certificate that the files of now may not vouch for. (TLS
        # 1.2 resumes without tickets too, and Python has no switch for that.)
        self.context.options |= ssl.OP_NO_TICKET
        self.context.num_tickets = 0
        self.context.sni_callback = self._hand_over

    def _hand_over(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Give a handshake the newest context; ssl calls this whether or not the client names a server."""
        connection.context = self.watched.value.context


class BrokerTls:
    """TLS towards the broker and the management API. A call gives the context for the next connection."""

    def __init__(self, ca: Path | None, certificate: Path | None, key: Path | None) -> None:
        """Without `ca` the system's authorities are trusted. Raises ConfigError."""
        own = Own(certificate, key, ("client_cert_file", "client_key_file")) if certificate and key else None
        setting = "ca_file" if ca is not None or own is None else own.settings[0]
        self.watched = Watched(setting, [ca, certificate, key], lambda: _client_context(ca, own))

    def __call__(self) -> ssl.SSLContext:
        """Return the context for the next connection, made of the files as they are now: the same as long as they are.

        If the files have a mistake, the context is the one made of the last good files.
        """
        return self.watched.refresh().context


def _server_context(own: Own, client_ca: Path | None) -> Made:
    """Return the context of the listeners, made of the files as they are. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    ends = _show(context, own)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        _trust(context, "client_ca_file", client_ca)
    return Made(context, ends)


def _client_context(ca: Path | None, own: Own | None) -> Made:
    """Return the context towards the broker, made of the files as they are. Raises ConfigError."""
    if ca is None:
        context = ssl.create_default_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _trust(context, "ca_file", ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return Made(context, _show(context, own) if own is not None else None)


def _show(context: ssl.SSLContext, own: Own) -> float | None:
    """Have a context show a certificate, loaded with its key from the files; return when the certificate ends.

    The end is in seconds since 1970; None if it cannot be read. Raises ConfigError, which names the setting of the file
    at fault.
    """
    for_certificate, for_key = own.settings
    # A fault of the certificate shows here; any fault below is the key's then.
    _check_certificate(for_certificate, own.certificate)
    secret_content(for_key, own.key)
    try:
        # The empty password: a key that wants one is refused here, and not asked for on a terminal.
        context.load_cert_chain(own.certificate, own.key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            why = f"is not the key of {for_certificate}"
        else:
            why = f"is not a private key (PEM, without a password) that fits {for_certificate}"
        raise ConfigError(f"{for_key}: {str(own.key)!r} {why}") from None
    except OSError as error:
        raise ConfigError(f"{for_key}: {str(own.key)!r} cannot be read: {error.strerror}") from None
    return end_of(content(for_certificate, own.certificate))


def _check_certificate(setting: str, certificate: Path) -> None:
    """Raise ConfigError, which names `setting`, if the file has no certificate that can be read."""
    _trust(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), setting, certificate)


def _trust(context: ssl.SSLContext, setting: str, ca: Path) -> None:
    """Add the certificates of the file `ca` to those that `context` trusts.

    Raises ConfigError, which names `setting`, if the file has no certificate that can be read.
    """
    if _MARK not in content(setting, ca):
        raise ConfigError(f"{setting}: {str(ca)!r} has no certificate (PEM)")
    try:
        context.load_verify_locations(ca)
    except (ssl.SSLError, OSError):
        raise ConfigError(f"{setting}: {str(ca)!r} has a certificate that cannot be read") from None
