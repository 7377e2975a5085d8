"""etcd with users and passwords, and etcd behind TLS."""

from __future__ import annotations

import datetime
import ipaddress
import os
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dejaq.errors import ClusterRefused, SynchronizationError
from dejaq.protocol.etcd import rpc_pb2 as rpc
from dejaq.synchronization.etcd.child import EtcdChild, EtcdPlace
from dejaq.synchronization.etcd.endpoints import parse_endpoints
from dejaq.synchronization.etcd.service import EtcdSynchronization
from dejaq.synchronization.etcd.wire import Wire
from dejaq.testing.servers.etcd import EtcdCluster
from dejaq.testing.servers.process import HOST, free_port
from dejaq.testing.waiting import eventually
from dejaq.timekeeper.clock import SystemClock


def member(url: str) -> EtcdSynchronization:
    return EtcdSynchronization(parse_endpoints(url), cluster="access", clock=SystemClock(), ttl=2)


def etcdctl(address: str, *arguments: str) -> None:
    command = ["etcdctl", f"--endpoints={address}", *arguments]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "ETCDCTL_API": "3"})


async def test_a_user_logs_in_and_its_token_is_renewed(tmp_path: Path) -> None:
    async with EtcdCluster(tmp_path, options=["--auth-token-ttl=1"]) as etcd:
        address = etcd.addresses[0]
        for arguments in (
            ("user", "add", "root:rootpass"),
            ("user", "add", "broker:secret"),
            ("role", "add", "dejaq"),
            ("role", "grant-permission", "dejaq", "--prefix=true", "readwrite", "/dejaq/access/"),
            ("user", "grant-role", "broker", "dejaq"),
            ("user", "grant-role", "root", "root"),
            ("auth", "enable"),
        ):
            etcdctl(address, *arguments)

        place = member(f"etcd://broker:secret@{address}")
        await place.open()
        try:
            record = await place.put("members/one", b"1", expected=0, bound=True)
            first = place.serving_until()
            await eventually(
                lambda: place.serving_until() > first + 3, within=20, what="renewed beyond the life of a token"
            )
            assert await place.get("members/one") == record
        finally:
            await place.close()

        for url in (f"etcd://broker:wrong@{address}", f"etcd://{address}"):
            stranger = member(url)
            with pytest.raises(ClusterRefused) as refused:
                await stranger.get("members/one")
            assert "wrong" not in str(refused.value)
            await stranger.close()


def certificate(path: Path) -> tuple[Path, Path]:
    """A self-signed certificate for loopback."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "etcd")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = path / "cert.pem", path / "key.pem"
    cert_file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert_file, key_file


async def test_the_connection_to_etcd_is_encrypted(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    (tmp_path / "other").mkdir()
    other_cert, _ = certificate(tmp_path / "other")
    address = f"{HOST}:{free_port()}"
    child = EtcdChild(
        EtcdPlace(name="tls", data=tmp_path / "etcd", client=address, peer=f"{HOST}:{free_port()}"),
        options=[
            f"--listen-client-urls=https://{address}",
            f"--advertise-client-urls=https://{address}",
            f"--cert-file={cert}",
            f"--key-file={key}",
            f"--trusted-ca-file={cert}",
            "--client-cert-auth",
        ],
    )
    child.start()
    try:
        place = member(f"etcd://{address}?ca={cert}&cert={cert}&key={key}")
        await place.open()
        assert await place.put("a", b"1") is not None
        await place.close()
        for url in (f"etcd://{address}", f"etcd://{address}?ca={cert}", f"etcd://{address}?ca={other_cert}"):
            stranger = Wire(parse_endpoints(url))
            with pytest.raises(SynchronizationError):
                await stranger.call("Maintenance.Status", rpc.StatusRequest(), rpc.StatusResponse, seconds=0.5)
            await stranger.close()
    finally:
        child.kill()
