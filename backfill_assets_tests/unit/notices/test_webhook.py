"""Notices, sent to a real server on this machine."""

from __future__ import annotations

import logging
import socket

import pytest

from backfill_assets.core.errors import NoticeError
from backfill_assets.notices.webhook import Webhook
from backfill_assets_tests.unit.notices.receiver import SECRET, dripping, receiver

VARIABLE = "BACKFILL_WEBHOOK"


def webhook(url: str) -> Webhook:
    return Webhook({VARIABLE: url}, timeout=5, retries=2, pause=0.01)


def test_a_notice_is_sent_again_until_the_receiver_takes_it() -> None:
    with receiver(500, 429, 200) as server:
        webhook(server.url).send(VARIABLE, "published")
    assert server.got == [("application/json", {"text": "published"})] * 3


def test_a_text_mentions_no_user_and_contains_no_link() -> None:
    observed = "stopped: <!channel> see <https://evil.example|the report> & @here, mail ada@all.example: 3 > 2"
    with receiver(200) as server:
        webhook(server.url).send(VARIABLE, observed)
    ((_, body),) = server.got
    assert body == {
        "text": "stopped: &lt;!channel&gt; see &lt;https://evil.example|the report&gt; &amp; @ here, mail ada@all.example: 3 &gt; 2"
    }


def test_a_receiver_that_keeps_failing_is_given_up_with_its_last_answer() -> None:
    with receiver(503) as server, pytest.raises(NoticeError, match=rf"webhook of {VARIABLE} answered 503"):
        webhook(server.url).send(VARIABLE, "published")
    assert len(server.got) == 3


@pytest.mark.parametrize("status", [404, 307])
def test_a_refusal_and_a_redirect_are_not_tried_again(status: int) -> None:
    with receiver(status) as server, pytest.raises(NoticeError, match=f"answered {status}"):
        webhook(server.url).send(VARIABLE, "published")
    assert len(server.got) == 1


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(NoticeError, match=f"{VARIABLE} is not set"):
        Webhook({}).send(VARIABLE, "published")


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:{port}/services/" + SECRET, "ftp://x/" + SECRET, "http://[" + SECRET]
)
def test_the_url_is_in_no_message_and_in_no_log(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(NoticeError) as refusal:
        webhook(url.format(port=unused_port())).send(VARIABLE, "published")
    shown = f"{refusal.value!r} {refusal.value.__cause__!r} {caplog.text}"
    assert "could not be reached" in shown
    assert SECRET not in shown
    assert "127.0.0.1" not in shown


def test_the_log_of_retries_does_not_name_the_url_either(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with receiver(500, 200) as server:
        webhook(server.url).send(VARIABLE, "published")
        logging.getLogger("urllib3.connectionpool").debug("somebody else's request")
    assert SECRET not in caplog.text
    assert "somebody else's request" in caplog.text


@pytest.mark.timeout(60)
def test_a_receiver_that_answers_too_slowly_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with dripping() as url, pytest.raises(NoticeError, match=r"could not be reached \(no answer in time") as refusal:
        Webhook({VARIABLE: url}, timeout=0.3, pause=0.01).send(VARIABLE, "published")
    assert SECRET not in f"{refusal.value!r} {caplog.text}"


def test_all_tries_together_end_with_the_patience_of_the_sender() -> None:
    with receiver(503) as server, pytest.raises(NoticeError, match="answered 503"):
        Webhook({VARIABLE: server.url}, retries=1_000, pause=0.2, patience=0.5).send(VARIABLE, "published")
    assert len(server.got) < 4


def test_a_command_waits_ten_seconds_for_a_notice_at_most() -> None:
    patient = Webhook({})
    assert (patient.timeout, patient.patience) == (5, 10)
