"""Seal secret inputs at submission, and open them for the workers that run the tasks."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha512
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from dagmaster.errors import Invalid
from dagmaster.model.sealed import MIN_LENGTH, BrokenSeal, is_sealed
from dagmaster.model.workflow import Workflow
from dagmaster.store.connect import Connection
from dagmaster.store.secrets import SEALING, get_secret

PURPOSE: Final = b"dagmaster secret value 1"


class Sealer:
    """Sealing is deterministic, so that a job submitted twice is the same job, and cached results are found by their
    parameters.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._ciphers = [AESSIV(sha512(key).digest()) for key in keys]

    def seal(self, clear: str) -> str:
        sealed = self._ciphers[0].encrypt(clear.encode(), [PURPOSE])
        return f"dms1[{urlsafe_b64encode(sealed).decode().rstrip('=')}]"

    def open(self, references: Collection[str]) -> dict[str, str]:
        """Raises BrokenSeal."""
        return {reference: self._open(reference) for reference in references}

    def _open(self, reference: str) -> str:
        text = reference[len("dms1[") : -1]
        sealed = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        for cipher in self._ciphers:
            try:
                return cipher.decrypt(sealed, [PURPOSE]).decode()
            except InvalidTag:
                continue
        raise BrokenSeal("a secret was sealed with another DAGMASTER_SECRET_KEY, or was changed")

    def seal_inputs(self, workflow: Workflow, inputs: Mapping[str, Any]) -> dict[str, Any]:
        sealed = dict(inputs)
        for name, spec in workflow.inputs.items():
            value = inputs.get(name)
            if not spec.secret or value is None or is_sealed(value):
                continue
            if not isinstance(value, str) or len(value) < MIN_LENGTH:
                raise Invalid(f"input {name!r} is secret and must be a string of at least {MIN_LENGTH} characters")
            sealed[name] = self.seal(value)
        return sealed


async def open_sealer(conn: Connection, configured_key: bytes | None) -> Sealer:
    """Use the configured key, which is in no table, or else a key that the fleet generated."""
    keys = [await get_secret(conn, SEALING, chosen=configured_key)] if configured_key is not None else []
    return Sealer([*keys, await get_secret(conn, SEALING)])


def has_secrets(workflow: Workflow) -> bool:
    return any(spec.secret for spec in workflow.inputs.values())
