"""Keys and certificates for your own federation."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

__all__ = ["make_certificates", "make_key"]


@contextlib.contextmanager
def _private(path: Path) -> Iterator[IO[bytes]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        yield file


def make_key(path: Path) -> None:
    """Write an ECDSA key pair for a node: ``path`` (private) and ``path.pub``."""
    from cryptography.hazmat.primitives import serialization  # optional: comes with Flower
    from cryptography.hazmat.primitives.asymmetric import ec  # optional

    key = ec.generate_private_key(ec.SECP384R1())
    plain = serialization.NoEncryption()
    with _private(path) as file:
        file.write(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, plain))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    Path(f"{path}.pub").write_bytes(public + b"\n")


def make_certificates(folder: Path, hosts: Sequence[str] = ("localhost", "127.0.0.1"), days: int = 365) -> None:
    """Write a certificate authority (``ca.crt``, ``ca.key``) and a server certificate that it signed (``server.crt``,
    ``server.key``)."""
    from cryptography import x509  # optional: comes with Flower
    from cryptography.hazmat.primitives import hashes, serialization  # optional
    from cryptography.hazmat.primitives.asymmetric import ec  # optional
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID  # optional

    now = datetime.datetime.now(datetime.UTC)
    authority_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedstill federation")])

    def certificate(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        )

    def usage(signs: bool) -> x509.KeyUsage:
        return x509.KeyUsage(not signs, False, False, False, False, signs, signs, False, False)

    names = [x509.IPAddress(ipaddress.ip_address(h)) if re.fullmatch(r"[\d.]+|.*:.*", h) else x509.DNSName(h) for h in hosts]
    own = (
        certificate(authority, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(signs=True), critical=True)
        .sign(authority_key, hashes.SHA384())
    )
    server = (
        certificate(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])]), server_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    plain = serialization.NoEncryption()
    for name, key in (("ca.key", authority_key), ("server.key", server_key)):
        with _private(folder / name) as file:
            file.write(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    for name, signed in (("ca.crt", own), ("server.crt", server)):
        (folder / name).write_bytes(signed.public_bytes(serialization.Encoding.PEM))
