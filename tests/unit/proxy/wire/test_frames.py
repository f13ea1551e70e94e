"""Method numbers are the specification's, and frames are well-formed whatever their parts."""

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import base, commands
from pamqp import frame as pamqp_frame

from proxy.wire import frames
from proxy.wire.frames import REPLY_CODES, Fault, close_frame, method_frame, reply_text, short_string, shorted
from tests.unit.proxy.session.wire import short, split


def spelled(name: str) -> str:
    """START_OK and Basic.GetOk without what sets their words apart."""
    return name.replace("_", "").replace(".", "").upper()


def test_method_ids_are_those_of_the_specification() -> None:
    mapping = cast(dict[int, type[base.Frame]], commands.INDEX_MAPPING)
    known = {spelled(made.name): number for number, made in mapping.items()}
    classes = ("CONNECTION_", "CHANNEL_", "EXCHANGE_", "QUEUE_", "BASIC_", "CONFIRM_", "TX_")
    ours = {
        name: value
        for name, value in vars(frames).items()
        if isinstance(value, int) and name.startswith(classes) and value not in REPLY_CODES
    }
    assert len(ours) > 35
    assert {name: known[spelled(name)] for name in ours} == ours


def test_every_reply_code_has_its_name() -> None:
    for code, name in REPLY_CODES.items():
        assert getattr(frames, name) == code


@given(st.binary(max_size=300), st.integers(0, 300), st.integers(0, 300))
def test_a_short_string_is_in_its_bounds_or_a_fault(data: bytes, at: int, end: int) -> None:
    end = min(end, len(data))
    if at < end and at + 1 + data[at] <= end:
        found, stop = short_string(data, at, end)
        assert (short(found), stop) == (data[at:stop], at + 1 + len(found))
    else:
        with pytest.raises(Fault) as raised:
            short_string(data, at, end)
        assert raised.value.code == 502


@given(st.binary(max_size=400))
def test_short_strings_are_cut(text: bytes) -> None:
    assert shorted(text) == short(text[:255])


@given(st.text(max_size=300), st.integers(-5, 260))
def test_reply_texts_are_cut_between_characters(text: str, most: int) -> None:
    data = text.encode(errors="ignore")
    cut = reply_text(data, most)
    assert len(cut) <= max(most, 0)
    assert data.startswith(cut)
    assert len(data) <= most or len(cut) > most - 4 or most < 4
    cut.decode()


@pytest.mark.parametrize("code", REPLY_CODES)
@pytest.mark.parametrize("channel", [0, 1, 65535])
@pytest.mark.parametrize("text", ["", "why", "é" * 300])
def test_closes_are_what_pamqp_reads(code: int, channel: int, text: str) -> None:
    data = close_frame(channel, code, text, frames.BASIC_PUBLISH)
    size, number, read = pamqp_frame.unmarshal(data)
    assert (size, number) == (len(data), channel)
    assert isinstance(read, commands.Channel.Close if channel else commands.Connection.Close)
    assert (read.reply_code, read.class_id, read.method_id) == (code, 60, 40)
    assert read.reply_text.startswith(f"{REPLY_CODES[code]} - {text[:50]}")


def test_a_method_frame() -> None:
    (frame,) = split(method_frame(7, frames.BASIC_ACK, b"arguments"))
    assert (frame.kind, frame.channel, frame.id, frame.payload[4:]) == (1, 7, (60, 80), b"arguments")
