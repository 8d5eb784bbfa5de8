"""The certificate authorities that HTTPS connections trust, loaded once per process: loading them takes up to 40 ms."""

import ssl
from functools import cache

import httpx


@cache
def trusted_authorities(*, trust_env: bool = True) -> ssl.SSLContext:
    """Those of certifi; with `trust_env`, SSL_CERT_FILE or SSL_CERT_DIR replaces them."""
    return httpx.create_ssl_context(trust_env=trust_env)
