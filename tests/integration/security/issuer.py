"""An OpenID provider of our own, on loopback, that also makes bad tokens: S2."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

AUDIENCE = "dejaq"


class ForgingIssuer:
    """A provider whose keys and answers a test can change."""

    def __init__(self) -> None:
        self.key: Any = RSAKey.generate_key(2048, parameters={"kid": "one", "use": "sig"})
        self.other: Any = RSAKey.generate_key(2048, parameters={"kid": "one", "use": "sig"})
        self.second: Any = ECKey.generate_key("P-256", parameters={"kid": "two", "use": "sig"})
        self.published: list[Any] = [self.key, self.second]
        self.url = ""
        self.fetches = 0
        self.down = False

    def claims(self, **changes: Any) -> dict[str, Any]:
        """The claims of a good token for an hour, with changes; None removes a claim."""
        now = int(time.time())
        claims = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "f3c1",
            "preferred_username": "alice",
            "groups": ["staff"],
            "iat": now,
            "exp": now + 3_600,
            **changes,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, key: Any = None, *, header: dict[str, Any] | None = None, **changes: Any) -> str:
        """A signed token."""
        chosen = key or self.key
        algorithm = "ES256" if isinstance(chosen, ECKey) else "RS256"
        named = {"alg": algorithm, "kid": chosen.kid, **(header or {})}
        return jwt.encode(named, self.claims(**changes), chosen, algorithms=[algorithm])

    def forged(self, header: dict[str, Any], signature: bytes = b"", **changes: Any) -> str:
        """A token with any header and signature."""
        return f"{_encoded(header)}.{_encoded(self.claims(**changes))}.{_text(signature)}"

    def confused(self) -> str:
        """A token that uses the public key of the provider as the shared secret of HS256."""
        secret = self.key.as_pem(private=False)
        body = f"{_encoded({'alg': 'HS256', 'kid': 'one'})}.{_encoded(self.claims())}"
        return f"{body}.{_text(hmac.new(secret, body.encode(), hashlib.sha256).digest())}"

    def document(self, path: str) -> dict[str, Any] | None:
        """What the provider answers."""
        if self.down:
            return None
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        if path == "/keys":
            self.fetches += 1
            return {"keys": [key.as_dict(private=False) for key in self.published]}
        return None

    @property
    def settings(self) -> str:
        """The section of a broker's auth file."""
        return f'[[issuers]]\nalias = "corp"\nissuer = "{self.url}"\naudience = ["{AUDIENCE}"]\n'


def _encoded(value: dict[str, Any]) -> str:
    return _text(json.dumps(value).encode())


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@contextmanager
def serving(issuer: ForgingIssuer) -> Iterator[ForgingIssuer]:
    """Serve the provider's documents on loopback."""

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = issuer.document(self.path)
            self.send_response(200 if found is not None else 503)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    issuer.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
