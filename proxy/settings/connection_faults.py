"""Say why no connection came about, and which setting to change: OpenSSL's words name no setting, nor what to do."""

import re

NOT_AMQP = "is it an AMQP port (5672, or 5671 for amqps://), and not one of the management API?"
"""A question to ask where a server takes the connection and sends nothing of AMQP."""

_OPENSSL = re.compile(r"\[SSL: (\w+)\] (.*?)(?: \(_ssl\.c:\d+\)|$)")
"""An error of OpenSSL as text, which is all that is left of it where a library has wrapped it: reason and words."""

_ADVICE = (
    ("CERTIFICATE_VERIFY_FAILED", "not valid for", "name the server in the URL as its certificate does"),
    ("CERTIFICATE_VERIFY_FAILED", "expired", "renew the certificate of the server"),
    ("CERTIFICATE_VERIFY_FAILED", "", "ca_file must name the CA that signed the certificate of the server"),
    ("CERTIFICATE_REQUIRED", "", "set client_cert_file and client_key_file"),
    ("HANDSHAKE_FAILURE", "", "set client_cert_file and client_key_file, if the server asks for a certificate"),
    ("UNKNOWN_CA", "", "the server does not trust the CA of client_cert_file"),
    ("BAD_CERTIFICATE", "", "the server does not take the certificate in client_cert_file"),
    ("WRONG_VERSION_NUMBER", "", "this port has no TLS: name the port with TLS, or write amqp:// or http:// without s"),
    ("RECORD_LAYER_FAILURE", "", "this port has no TLS: name the port with TLS, or write amqp:// or http:// without s"),
)
"""A part of a reason, a part of its words, and what to do: the first that fits counts."""


def in_words(error: BaseException) -> str:
    """Return why a connection failed, in one line without its address, and what to do about an error of TLS."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    # Some of aiohttp's messages have several lines.
    text = " ".join(str(getattr(error, "strerror", None) or str(error) or type(error).__name__).split())
    found = _OPENSSL.search(text)
    if found is None:
        return text
    reason, words = found.groups()
    for part, of_words, advice in _ADVICE:
        if part in reason and of_words in words:
            return f"{words} ({reason}); {advice}"
    return f"{words} ({reason})"


def not_http(address: object, told: str) -> str:
    """Return what to do about a `management_url` at whose address something answers that is not HTTP.

    `told` is the error of the HTTP client, with the first bytes of the answer as Python writes them.
    """
    if "b'AMQP" in told:
        return f"management_url: {address} is an AMQP port; the management API's is 15672, or 15671 for https://"
    if r"b'\x15\x03" in told:
        return f"management_url: {address} has TLS; write https://, or name the port without TLS"
    return f"management_url: {address} does not answer in HTTP: {' '.join(told.split())}"
