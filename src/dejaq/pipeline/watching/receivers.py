"""Where alarms go: a webhook, and a topic. Each raises when it could not hand a notice over."""

from __future__ import annotations

import json
from urllib.error import URLError
from urllib.request import Request, urlopen

import dejaq.sync
from dejaq.errors import Code, DejaqError, InvalidArgument
from dejaq.pipeline.watching.alarms import Notice

TIMEOUT_S = 5.0


class Webhook:
    """Posts each notice as JSON."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidArgument(f"the webhook {url} is not an address that begins with http:// or https://")
        self._url = url

    def __call__(self, notice: Notice) -> None:
        """Post a notice; any answer below 300 counts as received."""
        body = json.dumps(notice.body()).encode()
        headers = {"Content-Type": "application/json", "Idempotency-Key": notice.id}
        request = Request(self._url, data=body, headers=headers)  # noqa: S310  The scheme was checked.
        try:
            with urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
                answer.read(1)
        except URLError as error:
            raise OSError(f"{self._url}: {error.reason}") from None


class AlarmTopic:
    """Sends each notice as a message that is due at once; its id is that of the notice."""

    def __init__(self, url: str, topic: str) -> None:
        self._url, self._topic = url, topic

    def __call__(self, notice: Notice) -> None:
        """Send a notice. A notice that was sent before is there already."""
        headers = {"alarm": notice.kind, "state": notice.state}
        with (
            dejaq.sync.connect(self._url, name="dejaq pipeline", timeout=TIMEOUT_S) as client,
            client.producer(self._topic, group="dejaq-pipeline") as producer,
        ):
            try:
                producer.send(json.dumps(notice.body()).encode(), id=notice.id, headers=headers)
            except DejaqError as error:
                if error.code is not Code.ID_TAKEN:
                    raise
