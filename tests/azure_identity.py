"""The endpoint that gives a managed identity its tokens, as in Azure App Service."""

import base64
import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

HEADER = "secret-of-this-machine"
TENANT = "11111111-1111-1111-1111-111111111111"


def make_token(audience: str) -> str:
    """Unsigned: emulators check only the claims."""
    now = int(time.time())
    claims: dict[str, Any] = {
        "aud": audience,
        "iss": f"https://sts.windows.net/{TENANT}/",
        "iat": now - 300,
        "nbf": now - 300,
        "exp": now + 86400,
        "oid": TENANT,
        "tid": TENANT,
    }
    parts: tuple[dict[str, Any], ...] = ({"alg": "none", "typ": "JWT"}, claims, {})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)


@dataclass(frozen=True)
class IdentityServer:
    address: str
    tokens: list[str]

    @property
    def variables(self) -> dict[str, str]:
        return {"IDENTITY_ENDPOINT": f"{self.address}/msi/token", "IDENTITY_HEADER": HEADER}


@contextmanager
def run_identity() -> Iterator[IdentityServer]:
    """It records the tokens that it issued."""
    tokens: list[str] = []

    class Endpoint(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            [resource] = parse_qs(urlsplit(self.path).query)["resource"]
            is_known = self.headers.get("X-IDENTITY-HEADER") == HEADER
            tokens.append(make_token(resource))
            answer = {
                "access_token": tokens[-1],
                "expires_on": str(int(time.time()) + 86400),
                "resource": resource,
                "token_type": "Bearer",
            }
            self.send_response(200 if is_known else 401)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(answer if is_known else {}).encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield IdentityServer(f"http://127.0.0.1:{server.server_port}", tokens)
        server.shutdown()
