"""The two sides of a measurement: greeting, messages, places."""

from __future__ import annotations

import threading

import pytest

from gpu_exec.network.channel import Channel, connect, listen, place_of
from gpu_exec.network.greeting import Greeting, machine, read_greeting
from oasis_sim.errors import RunFailed, UsageError

# The control channel ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"", "has closed the connection"),
        (b"GET / HTTP/1.1\r\n", "no message of this program"),
        (b"[1]\n", "no message of this program"),
        (b'{"done": "x"}\n', "sent no done"),
        (b'{"done": true}\n', "sent no done"),
        (b"\xff\xfe\n", "no message of this program"),
        (b"[" * 100_000 + b"\n", "no message of this program"),
    ],
)
def test_nonsense_from_the_other_side_is_told(sent: bytes, said: str) -> None:
    """Whatever answers, the message says so and nothing hangs."""
    with listen(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(sent)

        thread = threading.Thread(target=answer)
        thread.start()
        with (
            connect(("127.0.0.1", listener.getsockname()[1])) as channel,
            pytest.raises(RunFailed, match=said),
        ):
            channel.field(channel.receive(), "done", int)
        thread.join()


HELLO = Greeting("host", b"who", 1 << 40, 0, 1 << 30, "nixl 1.5.1", machine())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "http"}, "no serving side of this program"),
        ({"version": 1}, "speaks version 1 of the measurement, this one 2; install the same"),
        ({"memory": "gpu"}, "same --memory"),
        ({"pool_bytes": 8}, "same --memory"),
        ({"nixl": "nixl 1.4.0"}, "nixl 1.5.1 here, nixl 1.4.0 there; install the same version"),
        ({"metadata": "?"}, "broken metadata"),
        ({"metadata": "\u00e9"}, "broken metadata"),
        ({"address": -1}, "broken address"),
        ({"device": 256}, "broken device"),
        ({"remote_bytes": 0}, "broken remote_bytes"),
        ({"remote_bytes": 10**400}, "broken remote_bytes"),
        ({"address": "0"}, "sent no address"),
        ({"machine": None}, "sent no machine"),
    ],
)
def test_sides_that_do_not_fit_are_refused(changes: dict[str, object], said: str) -> None:
    """Other programs, versions, memories and versions of NIXL, each by name."""
    with pytest.raises(RunFailed, match=said):
        greeted(HELLO.message() | changes)


def test_a_greeting_arrives_as_it_was_sent() -> None:
    """Every field; and one machine is the same machine."""
    assert HELLO == greeted(HELLO.message())
    assert machine() == HELLO.machine


def greeted(message: dict[str, object]) -> Greeting:
    """Read a greeting that another side sends."""
    with listen(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with Channel(listener.accept()[0]) as other:
                other.send(message)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            with connect(("127.0.0.1", listener.getsockname()[1])) as channel:
                return read_greeting(channel, "host", "nixl 1.5.1")
        finally:
            thread.join()


def test_messages_pass_both_ways() -> None:
    """What one side sends the other receives."""
    with listen(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with Channel(listener.accept()[0]) as other:
                other.send({"done": other.receive()["renew"]})

        thread = threading.Thread(target=answer)
        thread.start()
        with connect(("127.0.0.1", listener.getsockname()[1])) as channel:
            channel.send({"renew": 7})
            assert {"done": 7} == channel.receive()
        thread.join()


def test_nobody_listening_is_told() -> None:
    """The message says what to start on the other host."""
    with listen(("127.0.0.1", 0)) as listener:
        place = ("127.0.0.1", listener.getsockname()[1])
    with pytest.raises(RunFailed, match="--serve HOST:PORT` there first"):
        connect(place)


NO_PLACES = ["", "host", ":5600", "host:", "host:x", "host:70000", "h:-1", "h:" + "9" * 5000]


NO_HOSTS = [".a:1", "a..b:1", "a" * 64 + ".org:1", "a\udc80:1", "a\0:1", "[]:1"]


@pytest.mark.parametrize("text", NO_PLACES + NO_HOSTS, ids=lambda text: ascii(text)[:20])
def test_places_are_checked(text: str) -> None:
    """HOST:PORT and nothing else."""
    with pytest.raises(UsageError, match="no HOST:PORT"):
        place_of(text)


def test_places_are_read() -> None:
    """Names, addresses, IPv6 in brackets."""
    assert ("host", 1) == place_of("host:1")
    assert ("::1", 5600) == place_of("[::1]:5600")
