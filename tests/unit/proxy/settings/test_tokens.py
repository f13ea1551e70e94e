"""Tokens for publishing over HTTP: what each may, and the file that they are in."""

import hashlib
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.settings import tokens as tokens_module
from proxy.settings.parse import ConfigError
from proxy.settings.tokens import Access, Forbidden, Unauthorized, read_tokens

TOKEN = "s3cret-._~+/=="
FILE = f"""
[[tokens]]
name = "orders"
token = "{TOKEN}"
publish = ["shop/orders*", "%2F/a%2Fb"]

[[tokens]]
name = "anywhere"
sha256 = "{hashlib.sha256(b"other").hexdigest().upper()}"
publish = "*"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "tokens.toml"
    made.write_text(FILE)
    return made


def refresh(access: Access) -> None:
    assert access.tokens is not None
    access.tokens.refresh()


def test_without_a_file_everyone_may() -> None:
    open_to_all = Access(None)
    open_to_all.check(None, "/", "x")
    open_to_all.check("Basic eDp5", "/", "x")


@pytest.mark.parametrize(("vhost", "exchange"), [("shop", "orders"), ("shop", "orders.eu"), ("/", "a/b")])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER "])
def test_a_token_may_publish_where_its_patterns_say(file: Path, vhost: str, exchange: str, scheme: str) -> None:
    checked = Access(file)
    for _ in range(2):  # decided, and remembered
        checked.check(f"{scheme} {TOKEN}", vhost, exchange)
    checked.check(f"{scheme} other", "any", "where")


@pytest.mark.parametrize(
    ("vhost", "exchange"), [("/", "orders"), ("shop", "Orders"), ("shop", "a/b"), ("shop/orders", "x")]
)
def test_and_nowhere_else(file: Path, vhost: str, exchange: str) -> None:
    checked = Access(file)
    for _ in range(2):
        with pytest.raises(Forbidden) as told:
            checked.check(f"Bearer {TOKEN}", vhost, exchange)
    assert str(told.value) == (f"exchange: token 'orders' may not publish to {exchange!r} of virtual host {vhost!r}")


@pytest.mark.parametrize(
    ("authorization", "told"),
    [
        (None, "missing"),
        ("", "not of the form `Bearer"),
        ("Bearer", "not of the form `Bearer"),
        ("Bearer ", "not of the form `Bearer"),
        (f"Basic {TOKEN}", "not of the form `Bearer"),
        (f"Bearer{TOKEN}", "not of the form `Bearer"),
        (f"Bearer {TOKEN} {TOKEN}", "not of the form `Bearer"),
        (f"Bearer {TOKEN}\n", "not of the form `Bearer"),
        ("Bearer é", "not of the form `Bearer"),
        ("Bearer \udcff", "not of the form `Bearer"),
        (f"Bearer {TOKEN}=", "not in this sidecar's tokens_file"),
        (f"Bearer {hashlib.sha256(b'other').hexdigest()}", "not in this sidecar's tokens_file"),
        ("Bearer orders", "not in this sidecar's tokens_file"),
    ],
)
def test_what_is_no_known_token_is_told_without_it(file: Path, authorization: str | None, told: str) -> None:
    with pytest.raises(Unauthorized) as raised:
        Access(file).check(authorization, "shop", "orders")
    assert told in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_the_documented_file_is_one(tmp_path: Path) -> None:
    text = (Path(__file__).parents[4] / "docs/how-to/secure.md").read_text()
    (example,) = [block for block in re.findall(r"```toml\n(.*?)```", text, re.S) if "[[tokens]]" in block]
    (tmp_path / "tokens.toml").write_text(example)
    checked = Access(tmp_path / "tokens.toml")
    (token,) = re.findall(r'^token = "(.*)"$', example, re.M)
    checked.check(f"Bearer {token}", "shop", "orders")
    checked.check(f"Bearer {token}", "/", "audit")
    checked.check("Bearer abc", "any", "import.eu")  # what every text on SHA-256 takes for its example


def test_decisions_are_remembered_up_to_a_bound(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens_module, "DECISIONS", 3)
    tokens = read_tokens(file)
    for number in range(10):
        tokens.check("Bearer other", "/", f"x{number}")
        assert len(tokens._decisions) <= 3
        with pytest.raises(Forbidden):
            tokens.check(f"Bearer {TOKEN}", "/", f"x{number}")


ENTRY = '[[tokens]]\nname = "a"\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no [[tokens]]"),
        ("tokens = 1", "no [[tokens]]"),
        ("tokens = [1]", "no [[tokens]]"),
        ("tokens = []", "no [[tokens]]"),
        ("token = 1", "unknown 'token'"),
        ("[[tokens", "not TOML"),
        ("x = " + "[" * 5000, "not TOML"),
        ('[[tokens]]\ntoken = "s3cret"', "token 1: name: missing"),
        ('[[tokens]]\nname = ""', "token 1: name: not a line of text"),
        ('[[tokens]]\nname = "a\\nb"', "token 1: name: not a line of text"),
        ("[[tokens]]\nname = 1", "token 1: name: not a line of text"),
        (ENTRY + 'tokem = "s3cret"', "token 'a': unknown field 'tokem'"),
        (ENTRY + 'publish = ["*"]', "token 'a': token: give either token or sha256"),
        (ENTRY + 'token = "s3cret"\nsha256 = "0"', "token 'a': token: give either token or sha256"),
        (ENTRY + 'token = "s3cret with space"', "token 'a': token: has a character other than letters"),
        (ENTRY + 'token = ""', "token 'a': token: has a character other than letters"),
        (ENTRY + "token = 1", "token 'a': token: has a character other than letters"),
        (ENTRY + 'sha256 = "s3cret"', "token 'a': sha256: not 64 hex"),
        (ENTRY + "sha256 = 1", "token 'a': sha256: not 64 hex"),
        (ENTRY + 'token = "s3cret"', "token 'a': publish: has no pattern"),
        (ENTRY + 'token = "s3cret"\npublish = []', "token 'a': publish: has no pattern"),
        (ENTRY + 'token = "s3cret"\npublish = ["a/b/c"]', "token 'a': publish: 'a/b/c' is not NAME or VHOST/NAME"),
        (ENTRY + 'token = "s3cret"\npublish = 1', "token 'a': publish: 1 is not a list"),
        (FILE + FILE, "token 'orders': name: another token has the same name"),
        (
            FILE + ENTRY + f'token = "{TOKEN}"\npublish = "*"',
            "token 'a': token: it has the same value as token 'orders'",
        ),
        (
            FILE + ENTRY + 'token = "other"\npublish = "*"',
            "token 'a': token: it has the same value as token 'anywhere'",
        ),
    ],
)
def test_a_mistake_in_the_file_names_file_token_and_field(file: Path, text: str, told: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        Access(file)
    message = str(raised.value)
    assert message.startswith(f"tokens_file: {str(file)!r}")
    assert told in message
    assert "\n" not in message
    assert "s3cret" not in message


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzzed") / "tokens.toml"


@given(
    st.text()
    | st.lists(st.sampled_from([*FILE.splitlines(), "publish = ['a/b/c']", "token = 'a b'", "name = 1", "[x]"])).map(
        "\n".join
    )
)
def test_any_text_is_a_file_of_tokens_or_a_mistake_in_one_line(scratch: Path, text: str) -> None:
    scratch.write_text(text, encoding="utf-8", newline="")
    told = "tokens_file: "
    try:
        read_tokens(scratch)
    except ConfigError as error:
        told = str(error)
    assert told.startswith("tokens_file: ")
    assert "\n" not in told
    assert TOKEN not in told


def test_a_file_that_is_missing_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^tokens_file: .*cannot be read"):
        Access(tmp_path / "nowhere")
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"^tokens_file: .*not UTF-8"):
        Access(tmp_path / "binary")


def test_a_changed_file_counts_and_a_broken_one_does_not(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    checked = Access(file)
    file.write_text(ENTRY + 'token = "new"\npublish = ["orders"]\n')
    checked.check(f"Bearer {TOKEN}", "shop", "orders")  # until somebody looks
    refresh(checked)
    checked.check("Bearer new", "shop", "orders")
    with pytest.raises(Unauthorized):
        checked.check(f"Bearer {TOKEN}", "shop", "orders")
    file.write_text("")
    for _ in range(3):
        refresh(checked)
        checked.check("Bearer new", "shop", "orders")
    assert [record.levelname for record in caplog.records].count("ERROR") == 1
    assert "no [[tokens]]" in caplog.text
    file.unlink()
    refresh(checked)
    checked.check("Bearer new", "shop", "orders")
    file.write_text(FILE)
    refresh(checked)
    checked.check(f"Bearer {TOKEN}", "shop", "orders")


def test_a_version_that_kubernetes_puts_in_place_by_a_link_counts(tmp_path: Path) -> None:
    """The size and the time are the same: only the file behind the link is another."""
    for version, token in (("v1", "first"), ("v2", "other")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "tokens").write_text(ENTRY + f'token = "{token}"\npublish = "*"\n')
        os.utime(tmp_path / version / "tokens", (0, 0))
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "tokens").symlink_to("..data/tokens")
    checked = Access(tmp_path / "tokens")
    checked.check("Bearer first", "/", "x")
    (tmp_path / "..new").symlink_to("v2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    refresh(checked)
    checked.check("Bearer other", "/", "x")
    with pytest.raises(Unauthorized):
        checked.check("Bearer first", "/", "x")
