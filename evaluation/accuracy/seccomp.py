"""The system calls an untrusted program may make: what computing needs, and nothing that reaches beyond its process."""

from __future__ import annotations

import ctypes
import errno
import platform
import sys

# name, number on x86_64, number on aarch64 (Linux' unistd.h); a dash: not there.
_CALLS = """
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, close 3 57, lseek 8 62, dup 32 23,
dup2 33 -, dup3 292 24, pipe 22 -, pipe2 293 59, fstat 5 80, stat 4 -, lstat 6 -, newfstatat 262 79, statx 332 291,
access 21 -, faccessat 269 48, readlink 89 -, readlinkat 267 78, getcwd 79 17, chdir 80 49, getdents64 217 61,
statfs 137 43, fstatfs 138 44, fsync 74 82, fdatasync 75 83, poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72,
epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, eventfd2 290 19, mmap 9 222,
mprotect 10 226, munmap 11 215, mremap 25 216, madvise 28 233, brk 12 214, futex 202 98, set_robust_list 273 99,
set_tid_address 218 96, rseq 334 293, membarrier 324 283, sched_yield 24 124, sched_getaffinity 204 123,
arch_prctl 158 -, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, sigaltstack 131 132,
restart_syscall 219 128, getitimer 36 102, setitimer 38 103, alarm 37 -, pause 34 -, nanosleep 35 101,
clock_nanosleep 230 115, clock_gettime 228 113, clock_getres 229 114, gettimeofday 96 169, time 201 -, times 100 153,
getrusage 98 165, sysinfo 99 179, uname 63 160, getrandom 318 278, umask 95 166, getpid 39 172, getppid 110 173,
gettid 186 178, getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177, getgroups 115 158, getpgid 121 155,
getpgrp 111 -, getsid 124 156, getrlimit 97 163, getpriority 140 141, exit 60 93, exit_group 231 94
"""
# Only with Landlock, which says where. No directories: a flat folder can always be removed.
_CHANGES = "unlink 87 -, unlinkat 263 35, rename 82 -, renameat 264 38, renameat2 316 276, ftruncate 77 46"
_LOOKED_AT = "open 2 -, openat 257 56, clone 56 220, fcntl 72 25, ioctl 16 29, prlimit64 302 261"
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of the tables, AUDIT_ARCH_*
_NEWER = 424  # from here on numbers are the same everywhere; libraries do without such calls if told they do not exist

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_DENY = _ERROR | errno.EPERM
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16  # struct seccomp_data

_CLONE_THREAD = 0x10000
_WRITING = 0o3 | 0o100 | 0o1000  # O_ACCMODE, O_CREAT, O_TRUNC
_FCNTL = (0, 1, 2, 3, 4, 1030)  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC; F_SETOWN can kill others
_IOCTL = (0x5401, 0x5413, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONBIO, FIONCLEX, FIOCLEX
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def available() -> bool:
    """Whether this kernel takes filters and this architecture's numbers are known."""
    if sys.platform != "linux" or sys.maxsize < 2**32 or platform.machine() not in _ARCHITECTURES:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    # No filter at this address: EFAULT from a kernel that would have read it, EINVAL from one that cannot.
    return libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, None, 0, 0) == -1 and ctypes.get_errno() == errno.EFAULT


def prctl(option: int, value: int, pointer=None) -> None:
    """prctl(2). Raises `OSError` if it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    rest = [ctypes.c_ulong(0)] * 2
    if libc.prctl(option, ctypes.c_ulong(value), pointer or ctypes.c_ulong(0), *rest):
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def install(writing: bool) -> None:
    """Filter this thread and all it starts, for good. Needs PR_SET_NO_NEW_PRIVS.

    Args:
        writing: let files be opened for writing, renamed and removed. Without Landlock nothing says where: keep it off.

    Raises:
        `OSError`: the kernel refused the filter.
    """
    # struct sock_filter: u16, u8, u8, u32; the machines above are little-endian.
    code = b"".join(
        operation.to_bytes(2, "little") + bytes((true, false)) + operand.to_bytes(4, "little")
        for operation, true, false, operand in rules(platform.machine(), writing)
    )
    prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(_Program(len(code) // 8, code)))


def rules(machine: str, writing: bool) -> list[Instruction]:
    """The filter, in classic BPF."""
    column, architecture = _ARCHITECTURES[machine]
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _NEWER),
        (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
    ]
    for name, number in _numbers(_LOOKED_AT, column).items():
        body = _look(name, writing)
        code += [(_EQUAL, 0, len(body), number), *body]
    for number in _numbers(_CALLS + (f",{_CHANGES}" if writing else ""), column).values():
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    return [*code, (_RETURN, 0, 0, _DENY)]


def _numbers(table: str, column: int) -> dict[str, int]:
    rows = [entry.split() for entry in table.split(",")]
    return {row[0]: int(row[1 + column]) for row in rows if row[1 + column] != "-"}


def _look(name: str, writing: bool) -> list[Instruction]:
    """Instructions that decide by the arguments."""
    allow, deny = (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _DENY)
    if name in ("open", "openat"):
        flags = _argument(1 if name == "open" else 2)
        return [allow] if writing else [flags, (_ANY_BIT, 0, 1, _WRITING), deny, allow]
    if name == "clone":  # threads, no processes
        return [_argument(0), (_ANY_BIT, 0, 1, _CLONE_THREAD), allow, deny]
    if name == "prlimit64":  # reading limits, both halves of the pointer to new ones being zero
        return [_argument(2), (_EQUAL, 0, 3, 0), _argument(2, 4), (_EQUAL, 0, 1, 0), allow, deny]
    commands = [step for number in (_FCNTL if name == "fcntl" else _IOCTL) for step in ((_EQUAL, 0, 1, number), allow)]
    return [_argument(1), *commands, deny]


def _argument(place: int, offset: int = 0) -> Instruction:
    return (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * place + offset)
