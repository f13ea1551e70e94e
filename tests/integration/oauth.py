"""A RabbitMQ that takes access tokens, and the authorization server that gives them."""

import base64
import json
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

from testbed.node import Node
from tests.integration.own_node import own_node

CLIENT, SECRET = "sidecar", "hush hush"

EVERYTHING = "configure:*/* write:*/* read:*/* tag:management"
"""Scopes of a sidecar, without the id of the resource server before each."""

_CONFIGURATION = """
auth_backends.1 = rabbit_auth_backend_oauth2
auth_backends.2 = internal
auth_oauth2.resource_server_id = rabbitmq
auth_oauth2.default_key = key
auth_oauth2.signing_keys.key = FOLDER/signing.pem
"""


class Signer:
    """An RSA key that signs tokens (JWT, RFC 7519)."""

    def __init__(self, folder: Path) -> None:
        self._key = folder / "signing.key"
        _openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", str(self._key))
        self.public = _openssl("pkey", "-in", str(self._key), "-pubout")

    def token(self, scope: str = EVERYTHING, life: float = 3600, padding: int = 0) -> str:
        """Return a token that lives for so many seconds, up to one more, `padding` bytes longer than it needs to be."""
        scopes = " ".join(f"rabbitmq.{each.removeprefix('rabbitmq.')}" for each in scope.split())
        now = int(time.time())
        claims = {"aud": "rabbitmq", "scope": scopes, "sub": CLIENT, "iat": now, "exp": now + 1 + int(life)}
        parts = {"alg": "RS256", "typ": "JWT", "kid": "key"}, {**claims, "padding": "x" * padding}
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{_encoded(_openssl('dgst', '-sha256', '-sign', str(self._key), given=signed.encode()))}"


class AuthorizationServer:
    """A server that gives CLIENT tokens; what it answers can be changed, and it can be stopped and started again."""

    def __init__(self, signer: Signer, port: int) -> None:
        self._signer, self._port = signer, port
        self.url = f"http://127.0.0.1:{port}/token"
        self.life, self.scope, self.padding = 3600, EVERYTHING, 1000
        self.secret = SECRET
        self.given = 0
        """How many tokens it has given."""
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                status, answer = outer.answer(form, self.headers["Authorization"])
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def answer(self, form: Mapping[str, list[str]], authorization: str) -> tuple[int, dict[str, object]]:
        assert form["grant_type"] == ["client_credentials"]
        expected = base64.b64encode(f"{CLIENT}:{self.secret.replace(' ', '+')}".encode()).decode()
        if authorization != f"Basic {expected}":
            return 401, {"error": "invalid_client", "error_description": "bad client credentials"}
        self.given += 1
        (scope,) = form.get("scope", [self.scope])
        token = self._signer.token(scope, self.life, self.padding)
        return 200, {"access_token": token, "token_type": "bearer", "expires_in": self.life}


@contextmanager
def node_with_tokens(signer: Signer, more: str = "") -> Iterator[Node]:
    """Yield a node that takes the signer's tokens, and users with passwords too."""
    files = {"signing.pem": signer.public}
    with own_node(_CONFIGURATION + more, "[].\n", files, "rabbitmq_auth_backend_oauth2") as (node, _):
        yield node


def _openssl(*arguments: str, given: bytes = b"") -> bytes:
    return subprocess.run(["openssl", *arguments], input=given, check=True, capture_output=True).stdout


def _encoded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()
