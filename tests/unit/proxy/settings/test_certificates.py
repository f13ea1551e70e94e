"""When certificates end, held against what OpenSSL says of them."""

import base64
import random
import ssl
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.settings.certificates import end_of
from tests.certificates import Authority, Pair, ended


def told(certificate: Path) -> float:
    """Return the end of a certificate as the command openssl prints it."""
    command = ["openssl", "x509", "-noout", "-enddate", "-in", str(certificate)]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(ssl.cert_time_to_seconds(shown.strip().removeprefix("notAfter=")))


@pytest.mark.parametrize("days", [1, 90, 36500])  # the last is beyond 2049, where the form is another
def test_it_is_what_openssl_says(authority: Authority, days: int) -> None:
    made = authority.issue(f"for {days}", days=days)
    end = end_of(made.certificate.read_bytes())
    assert end == told(made.certificate)
    assert abs(end - time.time() - days * 86400) < 3600


def test_one_that_has_ended_is_read_too(authority: Authority) -> None:
    made = authority.issue("old")
    ended(made)
    assert end_of(made.certificate.read_bytes()) == told(made.certificate) < time.time()


def test_of_a_chain_it_is_the_first_wherever_the_key_stands(authority: Authority) -> None:
    made = authority.issue("leaf", days=5)
    parts = [file.read_bytes() for file in (made.key, made.certificate, authority.certificate)]
    assert end_of(b"".join(parts)) == told(made.certificate) != told(authority.certificate)


def of_der(der: bytes) -> bytes:
    return ssl.DER_cert_to_PEM_cert(der).encode()


def field(tag: int, *contents: bytes) -> bytes:
    content = b"".join(contents)
    length = bytes([len(content)]) if len(content) < 128 else b"\x82" + len(content).to_bytes(2, "big")
    return bytes([tag]) + length + content


def certificate(tag: int, end: bytes, *version: bytes) -> bytes:
    """As much of one as is looked at."""
    serial, algorithm, issuer = field(2, b"\1"), field(0x30), field(0x30, bytes(300))
    validity = field(0x30, field(0x17, b"500101000000Z"), field(tag, end))
    return of_der(field(0x30, field(0x30, *version, serial, algorithm, issuer, validity)))


@pytest.mark.parametrize(
    ("tag", "end", "year"),
    [
        (0x17, b"491231235959Z", 2049),
        (0x17, b"500101000000Z", 1950),
        (0x17, b"680101000000Z", 1968),
        (0x17, b"991231235959Z", 1999),
        (0x18, b"20500101000000Z", 2050),
        (0x18, b"99991231235959Z", 9999),
    ],
)
def test_two_digits_of_a_year_and_four(tag: int, end: bytes, year: int) -> None:
    for version in ((), (field(0xA0, field(2, b"\2")),)):
        at = end_of(certificate(tag, end, *version))
        assert at is not None
        assert datetime.fromtimestamp(at, UTC).year == year


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\nA\n-----END CERTIFICATE-----\n",
        of_der(b"\x30\x82"),
        of_der(b"\x30\x05\x30"),
        certificate(0x17, b"4912312359Z"),
        certificate(0x17, b"491231235959+0100"),
        certificate(0x17, b"\xff"),
        certificate(0x04, b"491231235959Z"),
    ],
)
def test_what_tells_no_end_has_none(pem: bytes) -> None:
    assert end_of(pem) is None


@given(st.binary())
def test_any_bytes_have_an_end_or_none(der: bytes) -> None:
    assert end_of(der) is None
    end_of(of_der(der))


def test_a_certificate_with_any_byte_changed_has_an_end_or_none(authority: Authority) -> None:
    made: Pair = authority.issue("changed")
    text = made.certificate.read_text()
    der = ssl.PEM_cert_to_DER_cert(text)
    assert base64.b64encode(der).decode() == "".join(text.splitlines()[1:-1])
    change = random.Random(3)
    for at in range(len(der)):
        end_of(of_der(der[:at] + bytes([change.randrange(256)]) + der[at + 1 :]))
        end_of(of_der(der[:at]))
