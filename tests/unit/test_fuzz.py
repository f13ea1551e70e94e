"""The fuzzers' harnesses on all inputs that are kept: seeds, corpus, and what was found once."""

import base64
import importlib
from pathlib import Path

import pytest

from proxy.settings.config import Settings
from proxy.settings.parse import ConfigError, parse_url
from tests.fuzz.corpus import HARNESSES, inputs, kept
from tests.fuzz.steps import Step, chance, pieces, steps, written

HARNESS_FILES = Path(__file__).parents[1] / "fuzz"


@pytest.mark.parametrize("name", HARNESSES)
def test_every_input_that_is_kept_holds(name: str) -> None:
    assert kept(name)
    check = importlib.import_module(f"tests.fuzz.{name}").check
    for data in inputs(name):
        try:
            check(data)
        except Exception as error:
            error.add_note(f"input: {base64.b64encode(data).decode()}")
            raise


def test_every_harness_is_run() -> None:
    harnesses = {file.stem for file in HARNESS_FILES.glob("*.py") if "\ndef check(data: bytes)" in file.read_text()}
    assert harnesses == set(HARNESSES)


def test_steps_are_read_as_they_are_written() -> None:
    script = [Step(0, 1, b""), Step(14, 255, b"x" * 191), Step(3, 2, b"y" * 128 * 31)]
    assert list(steps(written(script))) == script
    assert list(steps(b"\1\2\5ab")) == [Step(1, 2, b"ab")]
    assert list(steps(b"\1\2")) == []


def test_pieces_are_the_data() -> None:
    data = bytes(range(200))
    assert pieces(data, None) == [data]
    assert b"".join(cut := pieces(data, chance(data))) == data
    assert len(cut) > 1


# Found.


@pytest.mark.parametrize("url", ["https:[::1]:443@", "amqp://me:hush@", "http://@:80"])
def test_a_url_with_a_user_and_no_host_is_a_mistake_in_one_line(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_url(url)
    assert "hush" not in str(raised.value)


def test_a_url_that_begins_wrongly_is_not_shown_whatever_in_it_may_be_a_password() -> None:
    with pytest.raises(ConfigError) as raised:
        Settings(broker_url=parse_url("//rabbit//me:hush@rabbit"))
    assert str(raised.value) == "broker_url: does not start with amqp:// or amqps://"
