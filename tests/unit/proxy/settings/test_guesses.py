"""Wrong credentials: who is slowed by them, and what is remembered."""

from collections import Counter

import pytest

from proxy.settings.guesses import FREE, LOG_EVERY, MOST_PEERS, MOST_WORKED, RATE, WAITING, Guesses

PEER, OTHER = "192.0.2.1", "192.0.2.2"


class Case:
    """Guesses, at a time that stands still."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.counts: Counter[tuple[str, str]] = Counter()
        self.guesses = Guesses(self.counts, lambda: self.now)

    def failed(self, peer: str = PEER) -> float:
        return self.guesses.failed(peer, "token")

    def may_try(self, peer: str = PEER) -> bool:
        return self.guesses.may_try(peer, "token")


def test_few_cost_nothing_and_many_wait_their_turn() -> None:
    case = Case()
    delays = [case.failed() for _ in range(FREE + WAITING)]
    assert delays[:FREE] == [0] * FREE
    assert delays[FREE:] == [pytest.approx(n / RATE) for n in range(1, WAITING + 1)]
    assert not case.may_try()
    # The guess that was on its way by then waits no longer than the last of those.
    assert case.failed() == delays[-1]
    assert case.counts == {("token", "wrong"): FREE + WAITING + 1, ("token", "unchecked"): 1}
    # Another address is none the worse.
    assert case.may_try(OTHER)
    assert case.failed(OTHER) == 0


def test_one_after_the_other_is_slowed_and_never_shut_out() -> None:
    """As a program does that has a wrong token, beside one that has the right one."""
    case, started = Case(), 1000.0
    for _ in range(200):
        assert case.may_try()
        case.now += case.failed()
    assert case.now - started == pytest.approx((200 - FREE) / RATE, rel=0.1)


def test_it_is_forgiven() -> None:
    case = Case()
    for _ in range(FREE + WAITING):
        case.failed()
    assert not case.may_try()
    case.now += 1.5 / RATE
    assert case.may_try()
    case.now += (FREE + WAITING) / RATE
    assert case.failed() == 0


def test_addresses_that_one_client_has_are_one() -> None:
    case = Case()
    for number in range(FREE + WAITING):
        case.failed(f"2001:db8:0:7::{number:x}")
    assert not case.may_try("2001:db8:0:7:ffff::1")
    assert not case.may_try("2001:db8:0:7::1%eth0")
    assert case.may_try("2001:db8:0:8::1")
    for _ in range(FREE + WAITING):
        case.failed(f"::ffff:{PEER}")
    assert not case.may_try(PEER)
    assert case.may_try("http_socket")


def test_what_is_remembered_of_addresses_is_bounded() -> None:
    case = Case()
    for number in range(3 * MOST_PEERS):
        case.failed(f"10.0.{number // 256}.{number % 256}")
        # One that goes on is not forgotten for those.
        if number <= FREE + WAITING or not number % 100:
            case.failed()
    assert len(case.guesses._peers) == MOST_PEERS
    assert not case.may_try()


def test_the_log_names_address_and_user_and_not_too_often(caplog: pytest.LogCaptureFixture) -> None:
    case = Case()
    case.guesses.failed(PEER, "login", "eve\nWARNING forged\x1b[2J" + "x" * 100)
    for _ in range(50):
        case.guesses.failed(OTHER, "token")
    assert len(caplog.records) == 1
    case.now += LOG_EVERY
    case.guesses.failed(OTHER, "token")
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith(r"wrong credentials over HTTP: user 'eve\nWARNING forged\x1b[2Jxxx")
    assert first.endswith(f"x' was refused by the broker, from {PEER}")
    assert len(first) < 150
    assert (
        second == f"wrong credentials over HTTP: a bearer token is not in tokens_file, from {OTHER}"
        ", and 50 more wrong credentials since the last such line"
    )


def test_logins_that_have_worked() -> None:
    case = Case()
    login = ("alice", "s3cret")
    assert not case.guesses.has_worked(login)
    case.guesses.worked(login)
    assert case.guesses.has_worked(login)
    assert not case.guesses.has_worked(("alice", "other"))
    assert not case.guesses.has_worked(("alices", "3cret"))
    assert "s3cret" not in repr(case.guesses._worked)
    for number in range(MOST_WORKED):
        case.guesses.worked(("user", f"{number}"))
    assert len(case.guesses._worked) == MOST_WORKED
    assert not case.guesses.has_worked(login)
