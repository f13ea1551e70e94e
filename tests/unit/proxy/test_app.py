"""A sidecar warns of settings by which secrets may be seen."""

import logging
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from proxy.app import _warn_of_open_doors
from proxy.settings.config import Settings


def warnings_of(caplog: pytest.LogCaptureFixture, **settings: Any) -> list[str]:
    caplog.clear()
    _warn_of_open_doors(Settings(oauth_client_id="me", oauth_client_secret_file=Path("secret"), **settings))
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_token_that_passes_the_network_unencrypted(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_of(caplog, oauth_token_url=URL("http://login.example/token")) == [
        "oauth_token_url: the client's secret and tokens pass unencrypted to http://login.example/token; use https://"
    ]


@pytest.mark.parametrize(
    "url",
    ["https://login.example/token", "http://localhost/token", "http://127.0.0.1:8080/token", "http://[::1]/token"],
)
def test_a_token_that_nobody_else_sees(caplog: pytest.LogCaptureFixture, url: str) -> None:
    assert warnings_of(caplog, oauth_token_url=URL(url)) == []
