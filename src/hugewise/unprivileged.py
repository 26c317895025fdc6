"""Programs and work that root does not do itself: what a study, PATH, a package or a source of somebody's names.

Under root both run as `nobody`, without supplementary groups, without privileges to be gained by setuid programs, in
a session of their own and away from the terminal, and when they have ended nothing that they started goes on, whatever
session it made for itself. Any other caller is what runs them.

    run(["/opt/pg/bin/postgres", "--version"]).stdout
    call(lambda say: unpack(deb, folder))
"""

from __future__ import annotations

import ctypes
import os
import pwd
import select
import selectors
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import IO, Final, NoReturn

import msgspec

from hugewise import processes, reading
from hugewise.errors import HugewiseError, MachineError, StorageError, UserError
from hugewise.reading import UnreadableError
from hugewise.visible import printable

NAME: Final = "nobody"

Say = Callable[[str], None]

_SETPRIV: Final = "/usr/bin/setpriv"  # util-linux
_NOT_STARTED: Final = (126, 127)  # setpriv's exit status where it cannot start the program
_MOST_SAID: Final = 4 << 20  # bytes on each of stdout and stderr
_CHUNK: Final = 1 << 16
_GRACE_S: Final = 1.0  # for output that an ended program left in its pipes
_LONGEST_WHY: Final = 500  # characters of a program's last line in an error
_LONGEST_TEXT: Final = 10_000  # characters in one message of a working process
_LONGEST: Final = 1 << 17  # bytes of it, and of a hint, as JSON
# Variables of root's environment that a program gets; the rest is root's.
_PASSED: Final = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TZ")
_PR_SET_NO_NEW_PRIVS = 38  # prctl(2)
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_DAY_S: Final = 86400.0
_ERRORS: Final = {each.__name__: each for each in (HugewiseError, MachineError, StorageError, UserError)}


class Finished(msgspec.Struct, frozen=True):
    """Result of a program: its exit status (negative: a signal's number) and its output."""

    status: int
    stdout: str
    stderr: str

    @property
    def why(self) -> str:
        """Return the program's last line of output, or its exit status, for an error message."""
        lines = (self.stderr.strip() or self.stdout.strip()).splitlines()
        return lines[-1][:_LONGEST_WHY] if lines else f"exit status {self.status}"


def account() -> pwd.struct_passwd | None:
    """Return the unprivileged account under root, else None. Raises UserError where there is no such account."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(NAME)
    except KeyError:
        raise UserError(
            f"no account `{NAME}`: as root, hugewise runs programs of others as it", hint=f"useradd --system {NAME}"
        ) from None


def run(
    argv: Sequence[str],
    *,
    timeout: float = 30.0,
    cwd: str = "/",
    environment: Mapping[str, str] | None = None,
    stdin: IO[bytes] | None = None,
    most: int = _MOST_SAID,
    group: int | None = None,
) -> Finished:
    """Run a program as the unprivileged account to its end, and hear what it says.

    timeout      seconds; then it is killed with all of its process group
    environment  beside what root passes on (PATH, the locale); a caller that is not root passes on all it has
    stdin        nothing, unless it is given
    most         bytes that it may say on each of stdout and stderr; then it is killed
    group        under root, in place of the account's own: see `call`

    Raises HugewiseError where it cannot be started, does not end in time, or says too much.
    """
    name = argv[0]
    try:
        with _ended_whole(), _started(argv, cwd, environment, stdin, group) as running:
            try:
                out, err = read_to_end(running, name, timeout, most)
            except TimeoutError as error:
                raise HugewiseError(str(error)) from None
            finally:
                _end_group(running.pid)
            status = running.wait()
    except OSError as error:
        raise _unstarted(name, error.strerror or str(error)) from None
    found = Finished(status, out.decode(errors="replace"), err.decode(errors="replace"))
    if found.status in _NOT_STARTED and found.stderr.startswith("setpriv: "):
        raise _unstarted(name, found.why.rpartition(": ")[2])
    return found


def as_whom() -> str:
    """Return ` as nobody` under root, else an empty text, for messages about a program that was run."""
    return f" as {NAME}" if os.geteuid() == 0 else ""


def _unstarted(name: str, why: str) -> HugewiseError:
    whom = as_whom()
    hint = f"as root, hugewise runs programs of others as {NAME}: that account must be able to run it" if whom else None
    return HugewiseError(f"{name} cannot be run{whom}: {why}", hint=hint)


def _started(
    argv: Sequence[str],
    cwd: str,
    environment: Mapping[str, str] | None,
    stdin: IO[bytes] | None,
    group: int | None,
) -> subprocess.Popen[bytes]:
    who = account()
    passed = dict(os.environ) if who is None else {name: os.environ[name] for name in _PASSED if name in os.environ}
    # The program ends when this process does, even when this is killed. setpriv(1) instead of a function between fork
    # and exec, which may hang where there are threads.
    guard = (_SETPRIV, "--no-new-privs", "--pdeathsig", "KILL", "--") if os.access(_SETPRIV, os.X_OK) else ()
    return subprocess.Popen(
        (*guard, *argv),
        stdin=subprocess.DEVNULL if stdin is None else stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env={"PATH": os.defpath, **passed, **(environment or {})},
        start_new_session=True,
        user=None if who is None else who.pw_uid,
        group=None if who is None else who.pw_gid if group is None else group,
        extra_groups=None if who is None else [],
    )


def read_to_end(running: subprocess.Popen[bytes], name: str, timeout: float, most: int) -> tuple[bytes, bytes]:
    """Return stdout and stderr of a program in a session of its own until it has ended, its children not waited for.

    Raises TimeoutError, and HugewiseError where it says more than `most` bytes on one of them.
    """
    assert running.stdout is not None
    assert running.stderr is not None
    said = {running.stdout.fileno(): bytearray(), running.stderr.fileno(): bytearray()}
    end, open_streams = time.monotonic() + timeout, set(said)
    ended = os.pidfd_open(running.pid)
    try:
        with selectors.DefaultSelector() as waiting:
            for descriptor in (*said, ended):
                waiting.register(descriptor, selectors.EVENT_READ)
            while ended in waiting.get_map() or open_streams:
                ready = waiting.select(max(0.0, end - time.monotonic()))
                if not ready and ended in waiting.get_map():
                    raise TimeoutError(f"{name} has not ended within {timeout:g} s")
                if not ready:
                    break
                for key, _ in ready:
                    descriptor = key.fd
                    if descriptor == ended:
                        waiting.unregister(ended)
                        _end_group(running.pid)
                        end = min(end, time.monotonic() + _GRACE_S)
                        continue
                    more = os.read(descriptor, _CHUNK)
                    said[descriptor] += more
                    if not more:
                        waiting.unregister(descriptor)
                        open_streams.discard(descriptor)
                    elif len(said[descriptor]) > most:
                        raise HugewiseError(f"{name} says more than {most} bytes")
    finally:
        os.close(ended)
    out, err = (bytes(each) for each in said.values())
    return out, err


def _end_group(pid: int) -> None:
    # the group's number is reused only when the program has been reaped
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _ended_whole() -> AbstractContextManager[None]:
    who = account()
    return nullcontext() if who is None else processes.ended(who.pw_uid)


def call(
    work: Callable[[Say], None],
    say: Say = lambda _: None,
    *,
    keep: Sequence[int] = (),
    group: int | None = None,
    timeout: float = _DAY_S,
) -> None:
    """Do `work` as the unprivileged account: under root in a process of its own, else here.

    `work` is given a function for lines of progress, which `say` gets here; what it makes, it leaves in files. Under
    root it sees the variables of this process as they are now and changes none of them, has no descriptors but `keep`,
    and is in `group` where one is given: a process of the account that is not in it can neither trace this one, nor
    enter a folder that is for the group alone. It must not import anything, as the account may be unable to read this
    program; and of other threads only their locks are there: it neither prints nor logs. After `timeout` seconds it is
    ended, under root: what it waits for should have shorter limits of its own.

    Raises what `work` raises of HugewiseError and OSError; HugewiseError where it ends in another way.
    """
    who = account()
    if who is None:
        work(say)
        return
    with _ended_whole():
        _supervised(work, say, (who.pw_uid, who.pw_gid if group is None else group), keep, timeout)


def _supervised(
    work: Callable[[Say], None], say: Say, who: tuple[int, int], keep: Sequence[int], timeout: float
) -> None:
    heard, told = os.pipe()
    child = os.fork()
    if child == 0:
        _work(work, who, told, keep)
    os.close(told)
    over = os.pidfd_open(child)
    try:
        with os.fdopen(heard, "rb", buffering=0) as pipe:
            failed = _listen(_lines(pipe.fileno(), over, timeout), say)
    except BaseException:
        os.kill(child, signal.SIGTERM)  # it ends its children, and then itself
        raise
    finally:
        select.select([over], [], [], _GRACE_S)
        os.kill(child, signal.SIGKILL)  # not reaped yet: if it has ended, nothing happens
        _, status = os.waitpid(child, 0)
        os.close(over)
    if failed is not None:
        raise failed
    if status != 0:
        raise HugewiseError(f"a process of {NAME} that worked for this one ended: {_ending(status)}")


class _Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the process that works: of progress (`kind` is empty), or the error that ends it."""

    text: str
    kind: str = ""
    hint: str | None = None
    number: int = 0


_TOLD: Final = msgspec.json.Decoder(_Told)


def _work(work: Callable[[Say], None], who: tuple[int, int], told: int, keep: Sequence[int]) -> NoReturn:
    # runs in the new process, and never returns into the caller's code
    status = 1

    def tell(line: _Told) -> None:
        os.write(told, msgspec.json.encode(msgspec.structs.replace(line, text=line.text[:_LONGEST_TEXT])) + b"\n")

    try:
        _become(who, {told, *keep})
        try:
            work(lambda text: tell(_Told(text)))
            status = 0
        except HugewiseError as error:
            tell(_Told(error.message, _known(error), error.hint))
        except OSError as error:
            tell(_Told(f"{error.filename}: {error.strerror}", "OSError", number=error.errno or 0))
    except BaseException:  # whatever it is, it is told, and ends here
        with suppress(OSError):
            tell(_Told(f"a process of {NAME} that worked for this one failed:\n{traceback.format_exc(-6)}", "defect"))
    finally:
        with suppress(OSError):
            processes.end(lambda _: True)
        os._exit(status)


def _known(error: HugewiseError) -> str:
    return next(each.__name__ for each in type(error).__mro__ if each.__name__ in _ERRORS)


def _become(who: tuple[int, int], keep: set[int]) -> None:
    """Switch to that user and group for good, and close what is root's. Raises OSError."""
    for each in (signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whatever waits for a program ends that first
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    for descriptor in {int(each.name) for each in Path("/proc/self/fd").iterdir()} - {0, 1, 2, *keep}:
        with suppress(OSError):  # the one that this list was read by
            os.close(descriptor)
    os.setsid()
    os.umask(0o022)
    os.chdir("/")
    os.setgroups([])
    uid, gid = who
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    for name in set(os.environ) - set(_PASSED):
        del os.environ[name]
    with suppress(OSError):
        processes.adopt()
    _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    processes.die_with_parent(signal.SIGTERM)


def _lines(pipe: int, over: int, timeout: float) -> Iterator[bytes]:
    """Yield lines from the pipe until its end or the end of the process, whoever else holds the pipe. A line that is
    too long is given in parts. Raises HugewiseError after `timeout` seconds.
    """
    end, rest = time.monotonic() + timeout, b""
    while True:
        ready, _, _ = select.select([pipe, over], [], [], max(0.0, end - time.monotonic()))
        if not ready or time.monotonic() > end:
            raise HugewiseError(f"a process of {NAME} that worked for this one has not ended within {timeout:g} s")
        if pipe not in ready or not (more := os.read(pipe, _CHUNK)):
            break
        *whole, rest = (rest + more).split(b"\n")
        yield from whole
        if len(rest) > _LONGEST:
            break
    if rest:
        yield rest


def _listen(lines: Iterator[bytes], say: Say) -> HugewiseError | OSError | None:
    """Pass on what the process says until it ends; return the error that it ended with. Nothing else is believed."""
    for line in lines:
        try:
            told = reading.decoded(_TOLD, line)
        except UnreadableError:
            return HugewiseError(f"a process of {NAME} that worked for this one said something unknown")
        text = printable(told.text, keep="\n")
        if not told.kind:
            say(text)
        elif told.kind == "OSError":
            return OSError(told.number, text)
        else:
            hint = None if told.hint is None else printable(told.hint, keep="\n")
            return _ERRORS.get(told.kind, HugewiseError)(text, hint=hint)
    return None


def _ending(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"exit status {code}" if code >= 0 else f"killed by signal {-code}"
