"""Certificates made by the commands that docs/how-to/secure.md shows."""

import subprocess
from pathlib import Path
from typing import NamedTuple

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc")


class Pair(NamedTuple):
    """The files of a certificate and its key."""

    certificate: Path
    key: Path

    def replace(self, other: "Pair") -> None:
        """Puts another certificate and key in their place, one file after the other as a person would."""
        self.certificate.write_bytes(other.certificate.read_bytes())
        self.key.write_bytes(other.key.read_bytes())


class Authority:
    """A CA of a test's own."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        """Its files are in `folder`, named after it."""
        self._folder = folder
        self.files = Pair(folder / f"{name}.crt", folder / f"{name}.key")
        extensions = "basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign"
        _openssl(self.files, "3650", f"/CN={name}", extensions)

    @property
    def certificate(self) -> Path:
        """The file that others trust."""
        return self.files.certificate

    def issue(self, name: str, hosts: str = "DNS:localhost,IP:127.0.0.1", days: int = 90) -> Pair:
        """A certificate of this name for these hosts, for servers and clients; it ends in so many days."""
        made = Pair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        extensions = "basicConstraints=critical,CA:FALSE", f"subjectAltName={hosts}"
        _openssl(
            made,
            str(days),
            f"/CN={name}",
            extensions,
            "-CA",
            str(self.files.certificate),
            "-CAkey",
            str(self.files.key),
        )
        return made


def ended(pair: Pair) -> None:
    """Puts a certificate in the place of one, of the same key, that ends this moment."""
    old = ("-in", str(pair.certificate), "-signkey", str(pair.key), "-out", str(pair.certificate))
    subprocess.run(["openssl", "x509", *old, "-days", "0"], check=True, capture_output=True)


def _openssl(made: Pair, days: str, subject: str, extensions: tuple[str, ...], *signer: str) -> None:
    files = "-keyout", str(made.key), "-out", str(made.certificate)
    added = [argument for extension in extensions for argument in ("-addext", extension)]
    command = ["openssl", "req", "-x509", *_KEY, *files, "-days", days, "-subj", subject, *added, *signer]
    subprocess.run(command, check=True, capture_output=True)
