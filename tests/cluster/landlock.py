"""Kernels without Landlock, for a child: a filter that answers its system calls with ENOSYS."""

import ctypes
import errno
import struct

# Of every architecture: these calls are younger than the common table.
CALLS = {"landlock_create_ruleset": 444, "landlock_restrict_self": 446}
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LANDLOCK_CREATE_RULESET_VERSION = 1
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
RETURN_ERRNO, RETURN_ALLOW = 0x00050000, 0x7FFF0000

libc = ctypes.CDLL(None, use_errno=True)


def has_landlock():
    return (
        libc.syscall(
            CALLS["landlock_create_ruleset"],
            None,
            ctypes.c_size_t(0),
            LANDLOCK_CREATE_RULESET_VERSION,
        )
        >= 1
    )


def without_call(name):
    """A preexec_fn: the child and what it starts do not have the system call."""
    program = b"".join(
        struct.pack("HBBI", *instruction)
        for instruction in (
            (LOAD, 0, 0, 0),  # the number of the call
            (JUMP_IF_EQUAL, 0, 1, CALLS[name]),
            (RETURN, 0, 0, RETURN_ERRNO | errno.ENOSYS),
            (RETURN, 0, 0, RETURN_ALLOW),
        )
    )
    instructions = ctypes.create_string_buffer(program)
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(instructions))

    def install():
        # `instructions` is what the header points to.
        assert instructions is not None
        if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")
        if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "PR_SET_SECCOMP")

    return install
