"""The end of a certificate's validity, read from its DER (RFC 5280, section 4.1): ssl tells trusted ones only."""

import base64
import re
from datetime import UTC, datetime

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)

_VERSION = 0xA0
"""The tag of a certificate's version, the one optional field before the validity."""

_TIMES = {0x17: ("%y%m%d%H%M%SZ", 13), 0x18: ("%Y%m%d%H%M%SZ", 15)}
"""The forms of UTCTime and of GeneralizedTime that certificates have, and their lengths, by tag."""

_VALIDITY, _NOT_AFTER = 3, 1


def end_of(pem: bytes) -> float | None:
    """Return when the first certificate in a PEM file ends, in seconds since 1970; None if that cannot be read."""
    found = _PEM.search(pem)
    if found is None:
        return None
    try:
        ((_, certificate), *_) = _fields(base64.b64decode(found[1]))
        ((_, signed), *_) = _fields(certificate)
        fields = _fields(signed)
        if fields[0][0] == _VERSION:
            del fields[0]
        tag, text = _fields(fields[_VALIDITY][1])[_NOT_AFTER]
        form, length = _TIMES[tag]
        if len(text) != length:  # strptime takes numbers of one digit too
            return None
        at = datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC)
        if tag == 0x17 and at.year >= 2050:
            # Two digits of the year are from 1950 to 2049; to strptime, from 1969 to 2068.
            at = at.replace(year=at.year - 100)
    except (ValueError, KeyError, IndexError):
        return None
    return at.timestamp()


def _fields(der: bytes) -> list[tuple[int, bytes]]:
    """Return the tags and contents that follow each other in DER. Raises ValueError."""
    found, at = [], 0
    while at < len(der):
        tag, size = der[at], der[at + 1]
        at += 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(der[at : at + count], "big")
            at += count
        if at + size > len(der):
            raise ValueError("it ends within a field")
        found.append((tag, der[at : at + size]))
        at += size
    return found
