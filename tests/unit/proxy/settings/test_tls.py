"""TLS contexts: whom they let in, and that files that were replaced count."""

import os
import re
import ssl
import subprocess
from pathlib import Path

import pytest

from proxy.settings.parse import ConfigError
from proxy.settings.tls import BrokerTls, ServerTls
from tests.certificates import Authority, Pair


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the certificates of two authorities, to copy from."""
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("one", "two"):
        authority = Authority(folder, name)
        authority.issue(f"{name}-server")
        authority.issue(f"{name}-client")
    return folder


def pair(folder: Path, name: str) -> Pair:
    return Pair(folder / f"{name}.crt", folder / f"{name}.key")


@pytest.fixture
def server(made: Path, tmp_path: Path) -> Pair:
    """Files of a server of the first authority, to be replaced."""
    files = pair(tmp_path, "tls")
    files.replace(pair(made, "one-server"))
    return files


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost") -> tuple[str, str | None]:
    """The names of both sides as the other one saw them. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    there = server.wrap_bio(to_server, to_client, server_side=True)
    here = client.wrap_bio(to_client, to_server, server_hostname=host)
    unfinished = [here, there]
    while unfinished:
        for side in list(unfinished):
            try:
                side.do_handshake()
                unfinished.remove(side)
            except ssl.SSLWantReadError:
                pass
    name = _name(here)
    assert name is not None
    return name, _name(there)


def _name(connection: ssl.SSLObject) -> str | None:
    certificate = connection.getpeercert()
    if not certificate:
        return None
    subject: dict[str, str] = dict(part[0] for part in certificate["subject"])  # type: ignore[misc]
    return subject["commonName"]


def test_a_server_that_the_clients_ca_vouches_for(made: Path, server: Pair) -> None:
    listener = ServerTls(server.certificate, server.key, None)
    assert shake_hands(listener.context, BrokerTls(made / "one.crt", None, None)()) == ("one-server", None)
    for stranger in (BrokerTls(made / "two.crt", None, None)(), BrokerTls(None, None, None)()):
        with pytest.raises(ssl.SSLCertVerificationError):
            shake_hands(listener.context, stranger)
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for 'elsewhere'"):
        shake_hands(listener.context, BrokerTls(made / "one.crt", None, None)(), "elsewhere")


def test_the_certificates_please_strict_clients(made: Path, server: Pair) -> None:
    """As Python's are from 3.13 on."""
    client = ssl.create_default_context(cafile=made / "one.crt")
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    assert shake_hands(ServerTls(server.certificate, server.key, None).context, client)[0] == "one-server"


def test_the_documented_commands_make_certificates_that_work(tmp_path: Path) -> None:
    text = (Path(__file__).parents[4] / "docs/how-to/secure.md").read_text()
    (commands,) = [block for block in re.findall(r"```sh\n(.*?)```", text, re.S) if "-keyout" in block]
    subprocess.run(["sh", "-ec", commands], cwd=tmp_path, check=True, capture_output=True)
    listener = ServerTls(tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "ca.crt")
    client = BrokerTls(tmp_path / "ca.crt", tmp_path / "client.crt", tmp_path / "client.key")()
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    assert shake_hands(listener.context, client) == ("ringproxy", "client")


def test_tls_1_1_is_too_old(made: Path, server: Pair) -> None:
    listener, client = ServerTls(server.certificate, server.key, None), BrokerTls(made / "one.crt", None, None)()
    assert listener.context.minimum_version == client.minimum_version == ssl.TLSVersion.TLSv1_2
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert shake_hands(listener.context, client)[0] == "one-server"


def test_a_replaced_certificate_counts_for_the_next_connection(
    made: Path, server: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    listener = ServerTls(server.certificate, server.key, None)
    old, new = (BrokerTls(made / f"{name}.crt", None, None)() for name in ("one", "two"))
    # Half way, the two files do not fit together.
    server.certificate.write_bytes((made / "two-server.crt").read_bytes())
    listener.watched.refresh()
    listener.watched.refresh()
    assert shake_hands(listener.context, old)[0] == "one-server"
    assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR"] == [
        f"tls_key_file: {str(server.key)!r} is not the key of tls_cert_file; what was read before stays in force"
    ]
    server.key.write_bytes((made / "two-server.key").read_bytes())
    listener.watched.refresh()
    assert shake_hands(listener.context, new)[0] == "two-server"
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(listener.context, old)


def test_a_client_that_names_no_server_sees_the_new_certificate_too(made: Path, server: Pair) -> None:
    listener = ServerTls(server.certificate, server.key, None)
    server.replace(pair(made, "two-server"))
    listener.watched.refresh()
    client = BrokerTls(made / "two.crt", None, None)()
    # By address: those go into no handshake.
    assert shake_hands(listener.context, client, "127.0.0.1")[0] == "two-server"


def test_client_certificates_are_required_and_their_ca_can_be_replaced(
    made: Path, server: Pair, tmp_path: Path
) -> None:
    ca = tmp_path / "clients.crt"
    ca.write_bytes((made / "one.crt").read_bytes())
    listener = ServerTls(server.certificate, server.key, ca)
    clients = {name: BrokerTls(made / "one.crt", *pair(made, f"{name}-client"))() for name in ("one", "two")}
    assert shake_hands(listener.context, clients["one"]) == ("one-server", "one-client")
    for stranger in (clients["two"], BrokerTls(made / "one.crt", None, None)()):
        with pytest.raises(ssl.SSLError):
            shake_hands(listener.context, stranger)
    ca.write_bytes((made / "two.crt").read_bytes())
    listener.watched.refresh()
    assert shake_hands(listener.context, clients["two"]) == ("one-server", "two-client")
    with pytest.raises(ssl.SSLError):
        shake_hands(listener.context, clients["one"])


def test_the_way_to_the_broker_is_made_anew_when_its_files_change(made: Path, server: Pair, tmp_path: Path) -> None:
    ca = tmp_path / "ca.crt"
    ca.write_bytes((made / "two.crt").read_bytes())
    own = pair(tmp_path, "client")
    own.replace(pair(made, "two-client"))
    context = BrokerTls(ca, *own)
    listener = ServerTls(server.certificate, server.key, made / "one.crt")
    assert context() is context()
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(listener.context, context())
    ca.write_bytes((made / "one.crt").read_bytes())
    own.replace(pair(made, "one-client"))
    assert shake_hands(listener.context, context()) == ("one-server", "one-client")
    ca.write_text("rubbish")
    assert shake_hands(listener.context, context()) == ("one-server", "one-client")


def mistake(make: type[ServerTls], *files: Path | None) -> str:
    with pytest.raises(ConfigError) as raised:
        make(*files)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_mistake_in_a_file_names_the_setting(made: Path, server: Pair, tmp_path: Path) -> None:
    certificate, key = server
    nowhere, rubbish, broken, locked = (tmp_path / name for name in ("nowhere", "rubbish", "broken", "locked"))
    rubbish.write_text("rubbish")
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    subprocess.run(
        ["openssl", "ec", "-in", key, "-aes128", "-passout", "pass:x", "-out", locked], check=True, capture_output=True
    )
    for files, told in (
        ((nowhere, key, None), "tls_cert_file: {} cannot be read: No such file"),
        ((tmp_path, key, None), "tls_cert_file: {} cannot be read: Is a directory"),
        ((rubbish, key, None), "tls_cert_file: {} has no certificate (PEM)"),
        ((key, key, None), "tls_cert_file: {} has no certificate (PEM)"),
        ((broken, key, None), "tls_cert_file: {} has a certificate that cannot be read"),
        ((certificate, nowhere, None), "tls_key_file: {} cannot be read: No such file"),
        ((certificate, rubbish, None), "tls_key_file: {} is not a private key"),
        ((certificate, locked, None), "tls_key_file: {} is not a private key"),
        ((certificate, made / "two-server.key", None), "tls_key_file: {} is not the key of tls_cert_file"),
        ((certificate, key, nowhere), "client_ca_file: {} cannot be read: No such file"),
        ((certificate, key, rubbish), "client_ca_file: {} has no certificate (PEM)"),
        ((certificate, key, broken), "client_ca_file: {} has a certificate that cannot be read"),
    ):
        at_fault = next(file for file in files if file not in (certificate, None) and (file != key or files[0] == key))
        assert mistake(ServerTls, *files).startswith(told.format(repr(os.fspath(at_fault or ""))))
    for way, setting in (
        ((nowhere, None, None), "ca_file"),
        ((None, rubbish, key), "client_cert_file"),
        ((None, certificate, rubbish), "client_key_file"),
    ):
        with pytest.raises(ConfigError, match=f"^{setting}: "):
            BrokerTls(*way)
