"""The blocking client, for programs without an event loop.

Run it alone, or with DEJAQ_URL=dejaq://127.0.0.1:7400 to use a broker of your own.
"""

import os
from contextlib import ExitStack

import dejaq.sync


def main() -> None:
    with ExitStack() as stack:
        url = os.environ.get("DEJAQ_URL") or stack.enter_context(dejaq.sync.Broker()).url
        client = stack.enter_context(dejaq.sync.connect(url))
        client.create_topic("blocking", buckets=8)

        with client.producer("blocking", group="examples") as producer:
            producer.send(b"first", delay=0.2)
            producer.send_batch([b"second", b"third"], delay=[0.3, 0.4])

        with client.consumer("blocking", name="blocking-1", max_messages=3) as consumer:
            for lease in consumer:
                print(f"received {lease.body!r}")
                lease.delete()


if __name__ == "__main__":
    main()
