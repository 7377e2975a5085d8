"""A session of a task with a broker: several frames in progress, sent again after a broken session."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from dejaq.errors import DejaqError, NoBroker, Unavailable
from dejaq.protocol.blocking import BlockingSession, BlockingTransport
from dejaq.protocol.status import error_from_proto
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.version import PROTOCOL, package_version
from pyspark_dejaq.options import Options
from pyspark_dejaq.worker import connect

# The number of batches in progress: the broker writes one batch while the next ones are in transit.
_WINDOW = 4
_RETRY_S = 0.2

Content = TypeVar("Content")


@dataclass(eq=False)
class _Sent(Generic[Content]):
    """A frame that waits for its answer, and what it contains."""

    request: int
    frame: carrier.ClientFrame
    content: Content


class TaskSender(Generic[Content]):
    """Sends frames in order. Each frame must have the same effect when it is sent twice."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._transport: BlockingTransport | None = None
        self._session: BlockingSession | None = None
        self._request = 0
        self._in_progress: deque[_Sent[Content]] = deque()
        self._turn = 0

    # What a kind of writer defines

    def _handshake(self) -> Sequence[carrier.ClientFrame]:
        """The frames behind the hello that prepare a session; they are numbered from 2 on."""
        return ()

    def _take(self, content: Content, answer: carrier.BrokerFrame) -> None:
        """The answer to a frame."""
        raise NotImplementedError

    # Sending

    def _send(self, frame: carrier.ClientFrame, content: Content) -> None:
        """Send a frame; waits for the oldest one when enough are in progress."""
        self._request += 1
        frame.request = self._request
        self._in_progress.append(_Sent(self._request, frame, content))
        # Without a session the frame waits with the others in progress; the next session begins with them.
        if self._session is not None:
            self._session.send(frame)
        while len(self._in_progress) >= _WINDOW:
            self._settle_one()

    def finish(self) -> None:
        """Wait for every answer."""
        while self._in_progress:
            self._settle_one()
        self.close()

    def check(self) -> None:
        """Raise an error that prevents all writing, such as an unknown topic; waits for a broker that cannot be
        reached.
        """
        deadline = time.monotonic() + self._options.timeout
        while self._session is None:
            try:
                self._connect()
            except DejaqError as error:
                self._wait_after(error, deadline)
        self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            self._session.close()
        if self._transport is not None:
            self._transport.close()
        self._session = self._transport = None

    def _settle_one(self) -> None:
        deadline = time.monotonic() + self._options.timeout
        while True:
            try:
                if self._session is None:
                    self._connect()
                assert self._session is not None
                answer = self._session.receive(self._options.timeout)
                # Frames of a log may be answered in another order.
                mine = [sent for sent in self._in_progress if sent.request == answer.request]
                if (mine or not answer.request) and answer.WhichOneof("event") == "error":
                    raise error_from_proto(answer.error)
            except DejaqError as error:
                self._wait_after(error, deadline)
                continue
            if mine:
                self._in_progress.remove(mine[0])
                self._take(mine[0].content, answer)
                return

    def _wait_after(self, error: DejaqError, deadline: float) -> None:
        """Close the broken connection and wait before the next try; raises when the deadline has passed."""
        self.close()
        if not error.retryable:
            raise error
        if time.monotonic() > deadline:
            where = ", ".join(self._options.urls)
            raise NoBroker(
                f"no broker at {where} answered within {self._options.timeout:g} s; check dejaq.url and that it runs",
                details=str(error),
            ) from error
        time.sleep(_RETRY_S)

    def _connect(self) -> None:
        """Open a session with the next broker and send again every frame without an answer."""
        url = self._options.urls[self._turn % len(self._options.urls)]
        self._turn += 1
        self._transport = connect(url)
        self._session = session = self._transport.session()
        hello = carrier.Hello(protocol=PROTOCOL, sdk=f"spark/{package_version()}", client="spark")
        frames = [carrier.ClientFrame(hello=hello), *self._handshake()]
        for number, frame in enumerate(frames, 1):
            frame.request = number
            session.send(frame)
            answer = session.receive(self._options.timeout)
            if answer.WhichOneof("event") == "error":
                raise error_from_proto(answer.error)
            if answer.request != number:
                raise Unavailable(f"the broker at {url} answers out of turn")
        # The request numbers of the handshake and of the frames must differ.
        self._request = max(self._request, len(frames))
        for sent in self._in_progress:
            session.send(sent.frame)
