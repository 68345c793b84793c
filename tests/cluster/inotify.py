"""Names that appear in a directory, the moment they do."""

import ctypes
import os
import struct

_IN_MOVED_TO = 0x80
_IN_CREATE = 0x100
_HEADER = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


class DirectoryWatch:
    def __init__(self, directory):
        self.descriptor = _libc.inotify_init1(os.O_CLOEXEC)
        path = os.fsencode(directory)
        if _libc.inotify_add_watch(self.descriptor, path, _IN_CREATE | _IN_MOVED_TO) < 0:
            raise OSError(ctypes.get_errno(), f"cannot watch {directory}")

    def read(self):
        """Names made here or moved here since the last call. Blocks until there is one."""
        data, names = os.read(self.descriptor, 1 << 16), []
        while data:
            length = _HEADER.unpack_from(data)[3]
            name = data[_HEADER.size : _HEADER.size + length]
            names.append(os.fsdecode(name.rstrip(b"\0")))
            data = data[_HEADER.size + length :]
        return names

    def close(self):
        os.close(self.descriptor)
