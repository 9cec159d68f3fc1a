"""The system calls an untrusted program may make: what computing needs, and nothing that reaches beyond its process."""

from __future__ import annotations

import errno
from pathlib import Path

_CALLS = """
read write readv writev pread64 pwrite64 close lseek dup dup2 dup3 pipe pipe2 fstat stat lstat newfstatat statx access
faccessat readlink readlinkat getcwd chdir getdents64 statfs fstatfs fsync fdatasync poll ppoll select pselect6
epoll_create1 epoll_ctl epoll_wait epoll_pwait eventfd2 mmap mprotect munmap mremap madvise brk futex set_robust_list
set_tid_address rseq membarrier sched_yield sched_getaffinity arch_prctl rt_sigaction rt_sigprocmask rt_sigreturn
sigaltstack restart_syscall getitimer setitimer alarm pause nanosleep clock_nanosleep clock_gettime clock_getres
gettimeofday time times getrusage sysinfo uname getrandom umask getpid getppid gettid getuid geteuid getgid getegid
getgroups getpgid getpgrp getsid getrlimit getpriority exit exit_group
"""
# Only with Landlock, which says where. No directories: a flat folder can always be removed.
_CHANGES = "unlink unlinkat rename renameat renameat2 ftruncate"
_OPENING = {"open": 1, "openat": 2}  # which argument holds the flags
_NEWER = range(424, 512)  # the same everywhere; libraries do without such calls if told they do not exist

_CLONE_THREAD = 0x10000
_WRITING = 0o3 | 0o100 | 0o1000  # O_ACCMODE, O_CREAT, O_TRUNC
_COMMANDS = {
    "fcntl": (0, 1, 2, 3, 4, 1030),  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC; F_SETOWN can kill
    "ioctl": (0x5401, 0x5413, 0x5421, 0x5450, 0x5451),  # TCGETS, TIOCGWINSZ, FIONBIO, FIONCLEX, FIOCLEX
}


def available() -> bool:
    """Whether this kernel takes filters, and libseccomp and its Python binding are here."""
    try:
        import pyseccomp  # noqa: F401
    except (ImportError, RuntimeError):  # RuntimeError: the binding is here, the library is not
        return False
    return Path("/proc/sys/kernel/seccomp/actions_avail").is_file()


def rules(writing: bool):
    """The filter, a `pyseccomp.SyscallFilter`; its `load` binds this thread and all it starts, for good.

    Args:
        writing: let files be opened for writing, renamed and removed. Without Landlock nothing says where: keep it off.

    Raises:
        `OSError`: libseccomp refused a rule.
    """
    from pyseccomp import ALLOW, EQ, ERRNO, KILL_PROCESS, MASKED_EQ, Arch, Arg, Attr, SyscallFilter, resolve_syscall

    found = SyscallFilter(ERRNO(errno.EPERM))
    found.set_attr(Attr.ACT_BADARCH, KILL_PROCESS)

    def allow(name: str, *arguments: Arg) -> None:
        if resolve_syscall(Arch.NATIVE, name) >= 0:  # a call of this machine
            found.add_rule(ALLOW, name, *arguments)

    for number in _NEWER:
        found.add_rule(ERRNO(errno.ENOSYS), number)
    for name in (_CALLS + (_CHANGES if writing else "")).split():
        allow(name)
    for name, place in _OPENING.items():
        allow(name, *([] if writing else [Arg(place, MASKED_EQ, _WRITING, 0)]))
    allow("clone", Arg(0, MASKED_EQ, _CLONE_THREAD, _CLONE_THREAD))  # threads, no processes
    allow("prlimit64", Arg(2, EQ, 0))  # reading limits: no pointer to new ones
    for name, commands in _COMMANDS.items():
        for command in commands:
            allow(name, Arg(1, EQ, command))
    return found
