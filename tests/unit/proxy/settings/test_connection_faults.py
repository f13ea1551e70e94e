"""The words for connections that fail; tests/integration/test_tls.py has a real broker make most of them."""

import ssl

import pytest

from proxy.settings.connection_faults import in_words, not_http

CA = "ca_file must name the CA that signed the certificate of the server"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate (_ssl.c:1006)",
            f"certificate verify failed: self-signed certificate (CERTIFICATE_VERIFY_FAILED); {CA}",
        ),
        (
            "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: Hostname mismatch, "
            "certificate is not valid for 'rabbit'. (_ssl.c:1006)",
            "certificate verify failed: Hostname mismatch, certificate is not valid for 'rabbit'. "
            "(CERTIFICATE_VERIFY_FAILED); name the server in the URL as its certificate does",
        ),
        (
            "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired (_ssl.c:1006)",
            "certificate verify failed: certificate has expired (CERTIFICATE_VERIFY_FAILED); "
            "renew the certificate of the server",
        ),
        ("[SSL: NO_CIPHERS_AVAILABLE] no ciphers available (_ssl.c:1)", "no ciphers available (NO_CIPHERS_AVAILABLE)"),
    ],
)
def test_an_error_of_tls_says_what_to_do(text: str, told: str) -> None:
    assert in_words(ssl.SSLError(1, text)) == told
    # A library that wraps it leaves its text alone.
    assert in_words(ConnectionError(f"{text}")) == told
    assert in_words(RuntimeError(ssl.SSLError(1, text))) == told


def test_other_errors_are_told_in_one_line() -> None:
    assert in_words(TimeoutError()) == "no answer in time"
    assert in_words(ConnectionRefusedError(111, "Connection refused")) == "Connection refused"
    assert in_words(RuntimeError("one\n  two")) == "one two"
    assert in_words(RuntimeError()) == "RuntimeError"


def test_what_is_no_management_api() -> None:
    told = not_http("rabbit:25", "Bad status line:\n\n  b'220 mail ESMTP'\n  ^")
    assert told == "management_url: rabbit:25 does not answer in HTTP: Bad status line: b'220 mail ESMTP' ^"
