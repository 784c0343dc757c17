"""Certificates and keys: an authority of its own, the server's certificate, a key for each node."""

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pip_flower.storage.files import write_bytes, write_private

Key = ec.EllipticCurvePrivateKey
_AUTHORITY_DAYS = 3650
_SERVER_DAYS = 825
# Clocks of other machines may be behind.
_BEFORE = timedelta(days=1)


def authority(certificate: Path, key: Path) -> tuple[x509.Certificate, Key]:
    """The authority in these files; a new one if they are not there."""
    if certificate.is_file() and key.is_file():
        return x509.load_pem_x509_certificate(certificate.read_bytes()), _read_key(key)
    made = _new_key(key, serialization.PrivateFormat.PKCS8)
    name = _named("pip-flower deployment")
    builder = _builder(name, name, made.public_key(), _AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    signed = builder.sign(made, hashes.SHA384())
    write_bytes(certificate, signed.public_bytes(serialization.Encoding.PEM))
    return signed, made


def server_certificate(
    certificate: Path, key: Path, hosts: Sequence[str], signer: tuple[x509.Certificate, Key]
) -> None:
    """A certificate for the addresses that nodes dial; written anew every time, for the same key."""
    own = _read_key(key) if key.is_file() else _new_key(key, serialization.PrivateFormat.PKCS8)
    issuer, issuer_key = signer
    builder = _builder(_named(hosts[0]), issuer.subject, own.public_key(), _SERVER_DAYS)
    for extension, critical in (
        (x509.SubjectAlternativeName([_alternative(host) for host in hosts]), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(signs_certificates=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
    ):
        builder = builder.add_extension(extension, critical)
    signed = builder.sign(issuer_key, hashes.SHA384())
    write_bytes(certificate, signed.public_bytes(serialization.Encoding.PEM))


def node_key(path: Path) -> bytes:
    """The key of a node in `path`, made if it is not there; returns its public half in OpenSSH's format."""
    made = _read_ssh_key(path) if path.is_file() else _new_key(path, serialization.PrivateFormat.OpenSSH)
    return (
        made.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        + b"\n"
    )


def days_left(certificate: Path) -> int:
    """How long a certificate is still valid; negative if it is not."""
    found = x509.load_pem_x509_certificate(certificate.read_bytes())
    return (found.not_valid_after_utc - datetime.now(UTC)).days


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _new_key(path: Path, form: serialization.PrivateFormat) -> Key:
    made = ec.generate_private_key(ec.SECP384R1())
    write_private(path, made.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return made


def _read_key(path: Path) -> Key:
    return _checked(serialization.load_pem_private_key(path.read_bytes(), password=None), path)


def _read_ssh_key(path: Path) -> Key:
    return _checked(serialization.load_ssh_private_key(path.read_bytes(), password=None), path)


def _checked(key: object, path: Path) -> Key:
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path} is not an elliptic-curve key")
    return key


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
