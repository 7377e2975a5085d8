"""The format `dejaq` on a real Spark, with TLS, keys and rights: its tasks get credentials from their environment."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from pathlib import Path

import dejaq
from dejaq.security.keys import digest_of, new_secret
from dejaq.testing.waiting import patient
from tests.integration.security.certificates import Certificates

ROOT_ID, ROOT = new_secret(secrets.token_bytes)
BOB_ID, BOB = new_secret(secrets.token_bytes)
# A program of a user: a JVM that is started with the credentials, since Spark's workers have the environment of it.
PROGRAM = """
import sys
from dejaq.pipeline.spark.session import start

spark = start("local[1]", settings={"spark.driver.memory": "1g"}, brief=True)
messages = [("a", 1_900_000_000_000, b"x"), ("b", 1_900_000_000_001, b"y")]
rows = spark.createDataFrame(messages, "id string, ts long, body binary")

def write(topic):
    rows.write.format("dejaq").option("dejaq.url", sys.argv[1]).option("topic", topic).mode("append").save()

def read(topic):
    return spark.read.format("dejaq").option("dejaq.url", sys.argv[1]).option("subscribe", topic).load()

write("mail")
print("read", sorted((row.id, bytes(row.body)) for row in read("mail").collect()))
for name, work in (("write", lambda: write("other")), ("read", lambda: read("other").collect())):
    try:
        work()
    except Exception as error:
        print("refused", name, "PERMISSION_DENIED" in str(error) or "right" in str(error))
"""


async def test_spark_reads_and_writes_over_tls_with_the_rights_of_its_user(tmp_path: Path) -> None:
    """A session of its own: the environment of Spark's workers is that in which the JVM was started."""
    certificates = Certificates(tmp_path)
    auth = tmp_path / "auth.toml"
    auth.write_text(
        "".join(
            f'[[keys]]\nid = "{key_id}"\ndigest = "{digest_of(key)}"\nuser = "{user}"\n'
            for user, key_id, key in (("root", ROOT_ID, ROOT), ("bob", BOB_ID, BOB))
        )
    )
    async with dejaq.Broker(
        listen="127.0.0.1:0",
        tls_cert=certificates.server.cert,
        tls_key=certificates.server.key,
        auth=str(auth),
        admins="user:root",
        drain_ms=0,
    ) as broker:
        assert broker.central.server is not None
        url = f"dejaqs://{broker.central.server.address}"
        async with dejaq.connect(url, ca=certificates.ca, api_key=ROOT) as root:
            for name in ("mail", "other"):
                await root.create_topic(name, buckets=2)
            await root.rights().allow("user:bob", ["produce", "read"], "mail")
            environment = {**os.environ, "DEJAQ_CA": str(certificates.ca), "DEJAQ_API_KEY": BOB}
            program = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", PROGRAM, url),
                env=environment,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            async with asyncio.timeout(patient(240)):
                output, errors = await program.communicate()
            assert program.returncode == 0, errors.decode()[-2_000:]
            assert output.decode().splitlines() == [
                "read [('a', b'x'), ('b', b'y')]",
                "refused write True",
                "refused read True",
            ]
            assert (await root.count("mail"), await root.count("other")) == (2, 0)
