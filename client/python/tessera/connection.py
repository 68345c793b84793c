"""Where the service is, and what is said to be let in. The same rules as those of the CLI."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Generic, TypeVar

import grpc

from tessera.errors import may_be_elsewhere

Channel = TypeVar("Channel", grpc.Channel, grpc.aio.Channel)

_MAX_MESSAGE_BYTES = 4 << 20
_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    # A restarted service is another one: no state of a shared channel may outlive it.
    ("grpc.use_local_subchannel_pool", 1),
)
# Time for a connection to be made, too, which takes several round trips to another machine.
_LOCAL_OPTIONS = (("grpc.min_reconnect_backoff_ms", 100),)
# A coordinator on another machine, or one of several, that answers no ping for both together is
# given up: who only listens would otherwise wait for ever.
_REMOTE_OPTIONS = (
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 5000),
    # What newer versions of gRPC go by: theirs is a minute.
    ("grpc.http2.ping_timeout_ms", 5000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.min_reconnect_backoff_ms", 5000),
)


def state_dir(environment: Mapping[str, str] = os.environ) -> pathlib.Path:
    """Where a service of this machine keeps its state, and its socket."""
    if own := environment.get("TESSERA_STATE_DIR"):
        return pathlib.Path(own).absolute()
    # XDG: a relative path there is to be ignored.
    if (xdg := pathlib.Path(environment.get("XDG_STATE_HOME") or ".")).is_absolute():
        return xdg / "tessera"
    if (home := pathlib.Path(environment.get("HOME") or ".")).is_absolute():
        return home / ".local/state/tessera"
    raise ValueError("there is no home directory that a service could be found in; give address")


def split_addresses(text: str) -> list[str]:
    """One address, or several with commas between; a comma may be in a path, too."""
    addresses: list[str] = []
    for piece in text.split(","):
        begins = piece.startswith("unix:") or (":" in piece and "/" not in piece)
        if addresses and addresses[-1].startswith("unix:") and not begins:
            addresses[-1] += f",{piece}"
        else:
            addresses.append(piece)
    return addresses


def is_local(address: str) -> bool:
    if address.startswith("unix:"):
        return len(address) > len("unix:")
    host, _, port = address.rpartition(":")
    return bool(port) and (host in ("localhost", "[::1]") or host.startswith("127."))


@dataclasses.dataclass(frozen=True)
class Connection:
    """`address`: unix:PATH or HOST:PORT; None: TESSERA_ADDRESS, else that of `state_dir()`.

    Those of several coordinators, of which one leads, are separated by commas.
    ca_file: certificates (PEM) of who may vouch for the service; other machines need one.
    certificate_file, private_key_file: this client's own, where the service asks for them.
    token: sent with each call, to this machine or encrypted.
    Where an address is given, and these are not: TESSERA_CA, and the file TESSERA_TOKEN_FILE.
    """

    address: str | None = None
    token: str | None = None
    ca_file: str | os.PathLike[str] | None = None
    certificate_file: str | os.PathLike[str] | None = None
    private_key_file: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        address = self.address or os.environ.get("TESSERA_ADDRESS")
        if address:
            self._complete()
        object.__setattr__(self, "address", address or f"unix:{state_dir()}/tesserad.sock")
        if (self.certificate_file is None) != (self.private_key_file is None):
            raise ValueError("certificate_file and private_key_file must be given together")
        if self.ca_file is None and self.certificate_file is not None:
            raise ValueError("certificate_file is given, must be absent without ca_file")
        wrong = [address for address in self.addresses() if not is_local(address)]
        if self.ca_file is None and wrong:
            raise ValueError(
                f'address is "{wrong[0]}", must be unix:PATH or of this machine where no '
                "ca_file is given: the connection would not be encrypted"
            )

    def _complete(self) -> None:
        """As the command line does, from the environment."""
        if self.ca_file is None:
            object.__setattr__(self, "ca_file", os.environ.get("TESSERA_CA") or None)
        if self.token is None and (file := os.environ.get("TESSERA_TOKEN_FILE")):
            object.__setattr__(self, "token", pathlib.Path(file).read_text().strip())

    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()

    def addresses(self) -> list[str]:
        return split_addresses(self.address or "")

    def _credentials(self, address: str) -> grpc.ChannelCredentials | None:
        if self.ca_file is None or address.startswith("unix:"):
            return None
        files = (self.ca_file, self.private_key_file, self.certificate_file)
        return grpc.ssl_channel_credentials(
            *(None if file is None else pathlib.Path(file).read_bytes() for file in files)
        )

    def _options(self) -> tuple[tuple[str, int], ...]:
        addresses = self.addresses()
        local = len(addresses) == 1 and is_local(addresses[0])
        return _OPTIONS + (_LOCAL_OPTIONS if local else _REMOTE_OPTIONS)

    def channels(self) -> list[grpc.Channel]:
        """One for each address."""
        options = self._options()
        return [
            grpc.secure_channel(address, credentials, options=options)
            if (credentials := self._credentials(address))
            else grpc.insecure_channel(address, options=options)
            for address in self.addresses()
        ]

    def aio_channels(self) -> list[grpc.aio.Channel]:
        options = self._options()
        return [
            grpc.aio.secure_channel(address, credentials, options=options)
            if (credentials := self._credentials(address))
            else grpc.aio.insecure_channel(address, options=options)
            for address in self.addresses()
        ]


class Turns(Generic[Channel]):
    """The channels to several coordinators, and which of them is called: the one that leads."""

    def __init__(self, channels: list[Channel]) -> None:
        self.channels = channels
        self._current = 0

    def channel(self) -> Channel:
        return self.channels[self._current]

    def turn(self, failed: Channel, error: grpc.RpcError) -> bool:
        """Whether another may take the call that failed; the next one is called then."""
        if not may_be_elsewhere(error):
            return False
        # Calls of other threads may have turned before.
        index = self.channels.index(failed)
        if self._current == index:
            self._current = (index + 1) % len(self.channels)
        return True
