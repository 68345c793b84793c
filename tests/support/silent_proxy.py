"""A way to a service that stops to carry anything, as a network that drops packets: no end of a
connection is seen, and new ones come to nothing."""

import contextlib
import socket
import threading


class SilentProxy:
    """Listens on a port of 127.0.0.1, for the service at the Unix socket `path`."""

    def __init__(self, path):
        self._path = str(path)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._silent = threading.Event()
        self._sockets = [self._listener]
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def be_silent(self):
        """For good. What is on its way may still arrive."""
        self._silent.set()

    def close(self):
        self.be_silent()
        for each in self._sockets:
            each.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                if self._silent.is_set():
                    continue  # nobody ever answers
                service = socket.socket(socket.AF_UNIX)
                self._sockets.append(service)
                service.connect(self._path)
                for ends in ((client, service), (service, client)):
                    threading.Thread(target=self._forward, args=ends, daemon=True).start()

    def _forward(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 14):
                if self._silent.is_set():
                    return
                target.sendall(data)
            for each in (source, target):
                each.shutdown(socket.SHUT_RDWR)
