"""The URLs that callbacks may call, although strangers chose them."""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from dagmaster.errors import Invalid, Misconfigured

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolver = Callable[[str, int], Awaitable[Sequence[str]]]

PORTS: Final = {"https": 443, "http": 80}
MAX_URL_CHARS: Final = 2048
_HOST: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_GLOBAL_V6: Final = ipaddress.IPv6Network("2000::/3")
# Python versions disagree about 6to4 addresses, and a relay can forward them anywhere.
_SIX_TO_FOUR: Final = ipaddress.IPv6Network("2002::/16")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_RELAYS: Final = ipaddress.IPv4Network("192.88.99.0/24")


class Refused(Invalid):
    """This URL is not allowed."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The hosts, addresses and networks that are allowed in addition to public addresses over https."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()
    allow_http: bool = False

    def trusts_host(self, host: str) -> bool:
        address = read_address(host)
        return host in self.hosts or (address is not None and self.trusts_address(address))

    def trusts_address(self, address: Address) -> bool:
        return any(address in network for network in self.networks)


def policy_of(allowed: Iterable[str], *, allow_http: bool = False) -> Policy:
    """`allowed` lists host names, addresses, and networks such as 10.1.0.0/16."""
    hosts, networks = set(), []
    for name in allowed:
        plain = name.strip().strip("[]").rstrip(".").lower()
        try:
            networks.append(ipaddress.ip_network(plain))
        except ValueError:
            if not _HOST.fullmatch(plain):
                raise Misconfigured(
                    f"{name!r} cannot be allowed for callbacks: use a host, an address or a network (10.1.0.0/16)"
                ) from None
            hosts.add(plain)
    return Policy(frozenset(hosts), tuple(networks), allow_http)


@dataclass(frozen=True, slots=True)
class Target:
    """The destination of a call. Its address is fixed, even if the name resolves differently later."""

    scheme: str
    host: str
    port: int
    address: Address
    path: str

    @property
    def url(self) -> str:
        return f"{self.scheme}://{_bracketed(str(self.address))}:{self.port}{self.path}"

    @property
    def authority(self) -> str:
        host = _bracketed(self.host)
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


def check_url(url: str, policy: Policy) -> tuple[str, int]:
    """The host and port; raises Refused for URLs that can be rejected without resolving the name."""
    parts = _split(url)
    if "@" in parts.netloc:
        raise Refused("the callback URL must not contain a user or a password")
    host, port = _host(parts), _port(parts)
    trusted = policy.trusts_host(host)
    if parts.scheme != "https" and not (policy.allow_http or trusted):
        raise Refused(f"the callback URL must begin with https://, not {parts.scheme}://")
    address = read_address(host)
    if not trusted and (host == "localhost" or host.endswith(".localhost")):
        raise Refused(f"callbacks to {host} are not allowed")
    if not trusted and address is not None and not is_public(address):
        raise Refused(f"callbacks to {address} are not allowed: it is not a public address")
    return host, port


def _split(url: str) -> SplitResult:
    if len(url) > MAX_URL_CHARS:
        raise Refused(f"the callback URL may have at most {MAX_URL_CHARS} characters, not {len(url)}")
    # URL parsers disagree about backslashes and control characters.
    if not url.isprintable() or " " in url or "\\" in url:
        raise Refused("the callback URL contains a space, a backslash or a control character")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise Refused("the callback URL is not valid") from error
    if parts.scheme not in PORTS:
        raise Refused("the callback URL must begin with https://")
    return parts


def _host(parts: SplitResult) -> str:
    host = (parts.hostname or "").rstrip(".")
    try:
        plain = host if ":" in host else host.encode("idna").decode().lower()
    except UnicodeError:
        plain = ""
    if not plain or (read_address(plain) is None and not _HOST.fullmatch(plain)):
        raise Refused("the callback URL has no valid host")
    return plain


def _port(parts: SplitResult) -> int:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise Refused("the port of the callback URL must be between 1 and 65535")
    return port or PORTS[parts.scheme]


def read_address(host: str) -> Address | None:
    """The address of a literal, in all forms that the system's resolver accepts: 127.1, 0x7f.1, 2130706433."""
    try:
        return None if "%" in host else ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host)) if host.isascii() else None
    except OSError:
        return None


def is_public(address: Address) -> bool:
    """Whether the address is on the public internet, even if it is embedded in another address."""
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not address.is_multicast and not address.is_reserved and address not in _RELAYS
    if address.ipv4_mapped is not None:
        return is_public(address.ipv4_mapped)
    if address in _NAT64:
        return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    if address not in _GLOBAL_V6 or address in _SIX_TO_FOUR or not address.is_global:
        return False
    return all(is_public(embedded) for embedded in address.teredo or ())


async def look_up(host: str, port: int) -> Sequence[str]:
    answers = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in answers]


async def resolve(url: str, policy: Policy, look_up: Resolver = look_up) -> Target:
    """Resolve once, and reject if any of the addresses is not allowed. Raises OSError for an unknown name."""
    host, port = check_url(url, policy)
    parts = urlsplit(url)
    literal = read_address(host)
    addresses = [literal] if literal else [ipaddress.ip_address(text) for text in await look_up(host, port)]
    if not addresses:
        raise OSError(f"no address is known for {host}")
    for address in addresses:
        if not (policy.trusts_host(host) or policy.trusts_address(address) or is_public(address)):
            raise Refused(f"callbacks to {host} are not allowed: it resolves to {address}")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, port, addresses[0], path)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
