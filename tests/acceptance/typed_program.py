"""A user's program that uses most of the client: mypy must know the type of every expression in it."""

from dataclasses import dataclass

import dejaq
import dejaq.sync


@dataclass
class Order:
    price: float


def produce(client: dejaq.sync.Client) -> None:
    topic: dejaq.TopicInfo = client.create_topic("mail", buckets=4)
    print(topic.name, client.ping().latency_ms)
    with client.producer("mail", group="billing") as producer:
        sent: str = producer.send(b"hello", delay=2.5)
        for message_id, code in producer.send_batch([b"a"], ids=["a"], results=True).items():
            print(message_id, code.name)
        producer.move(sent, delay=3)
        print(producer.topic, producer.request(b"ask").body, producer.reply_to(sent).headers)
        print(producer.cancel_where(dejaq.Where(priorities=(1, 2))).done)


def consume(client: dejaq.sync.Client) -> None:
    with client.consumer("mail", name="w") as consumer:
        for lease in consumer:
            print(lease.body.decode(), lease.headers["kind"], lease.expires.isoformat())
            lease.delete()
        for batch in consumer.batches(10):
            print(batch.ids, batch[0].attempts)
            batch.delete()
        print(consumer.paused, consumer.name, consumer.take(5, timeout=1).bodies)
        consumer.stop()


def work(client: dejaq.sync.Client) -> None:
    @client.worker("mail", concurrency=2)
    def handle(lease: dejaq.sync.Lease) -> None:
        lease.release(delay=3)

    @client.worker("mail")
    async def handle_async(lease: dejaq.Lease) -> None:
        await lease.extend(5)

    @client.worker("orders", codec="json")
    def pay(order: Order) -> float:
        return order.price

    with handle.running(), pay.running():
        print(handle.stats.done, handle_async.topic)
    client.run_workers()


def look(client: dejaq.sync.Client) -> None:
    for page in client.browse("mail", status="waiting"):
        print([message.id for message in page])
    for page in client.dead_letters("mail").browse(reason="broken"):
        print([message.headers for message in page])
    cron = client.cron("jobs")
    added = cron.add("report", "@daily", zone="UTC", replace=True)
    print(added.next, [time.isoformat() for time in cron.preview("@hourly", jitter=3)])
    print(cron.add_many([dejaq.Schedule("a", "@daily")])[0].count, cron.history("a")[0][1])
    with client.transaction(group="billing") as transaction:
        print(transaction.send("mail", b"x"))


def main() -> None:
    with dejaq.sync.Broker() as broker, dejaq.sync.connect(broker.url, name="typed") as client:
        for part in (produce, consume, work, look):
            part(client)
