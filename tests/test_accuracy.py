"""Right and wrong answers: numbers, expressions, programs, and a sandbox that holds."""

import re
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest
from domino.evaluation.accuracy import CODE_TASKS, answers, programs, sandbox, score, seccomp
from domino.evaluation.tasks import load

STUB = {
    "prompt": "import math\nfrom typing import List\n\n\ndef half(x):\n    return x / 2\n\n\ndef area(r: List[int]) -> float:\n"
    '    """Of the first radius."""\n',
    "entry_point": "area",
    "test": "\n\ndef check(candidate):\n    assert abs(candidate([2]) - 12.566) < 0.01\n    assert half(2) == 1\n",
}
MBPP = {
    "test_imports": ["import math"],
    "test_list": ["assert double(2) == 4", "assert math.isclose(double(0.5), 1)", "assert set([double(1)]) == {2}"],
}
RIGHT = "def area(r: List[int]) -> float:\n    return math.pi * r[0] ** 2\n"
CONFINED = sandbox.layers()
PATIENT = 60  # seconds: what ends by itself is not to be called a timeout on a machine that stood still
needs_sandbox = pytest.mark.skipif(not CONFINED, reason="no seccomp on this platform")


@pytest.mark.parametrize(
    ("text", "answer", "right"),
    [
        ("So \\boxed{18}.", "18", True),
        ("\\boxed{17} no, \\boxed{18}", "18", True),
        ("\\boxed{18} no, \\boxed{17}", "18", False),
        ("It is \\boxed{\\$1,234.00}", "1234", True),
        ("\\boxed{1{,}234}", "1234", True),
        ("\\boxed{18\\text{ dollars}}", "18", True),
        ("\\boxed{18 eggs}", "18", True),
        ("\\boxed{50\\%}", "50", True),
        ("\\boxed{\\frac{36}{2}}", "18", True),
        ("\\boxed{x = 18}", "18", True),
        ("\\boxed{18} and then \\boxed{unfinished", "18", True),
        ("She makes 9 * 2 = $18 every day.", "18", True),
        ("It costs $1,234,567.50.", "1234567.5", True),
        ("a list 1,2,3", "3", True),
        ("10-5 is 5, so \u22125", "-5", True),
        ("between 10-5", "5", True),
        (".5", "0.5", True),
        ("at most 18 of 20", "18", False),
        ("No idea.", "18", False),
        ("", "18", False),
        ("\\boxed{}", "18", False),
    ],
)
def test_numbers(text, answer, right):
    assert answers.same_number(text, answer) is right
    assert score("gsm8k", {"answer": answer}, text, execute=False) is right


def test_aime_answers_have_leading_zeros():
    assert score("aime24", {"answer": "033"}, "\\boxed{33}", execute=False)
    assert score("aime25", {"answer": 33}, "\\boxed{033}", execute=False)


@pytest.mark.parametrize(
    ("text", "answer", "right"),
    [
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}", True),
        ("\\boxed{0.5}", "\\frac{1}{2}", True),
        ("\\boxed{\\left(3, \\frac{\\pi}{2}\\right)}", "\\left( 3, \\frac{\\pi}{2} \\right)", True),
        ("\\boxed{\\left(3, \\frac{\\pi}{3}\\right)}", "\\left( 3, \\frac{\\pi}{2} \\right)", False),
        ("\\boxed{q - p}", "p - q", False),
        ("\\boxed{-q + p}", "p - q", True),
        ("\\boxed{\\text{Evelyn}}", "\\text{Evelyn}", True),
        ("\\boxed{\\{1, 2\\}}", "\\{2, 1\\}", True),
        ("The answer is $\\frac{14}{3}$.", "\\frac{14}{3}", True),
        ("", "5", False),
    ],
)
def test_expressions(text, answer, right):
    pytest.importorskip("math_verify")
    assert score("math500", {"answer": answer}, text, execute=False) is right


def test_every_packaged_answer_equals_itself():
    pytest.importorskip("math_verify")
    for task in ("gsm8k", "math500"):
        for question in load(task):
            assert score(task, question.checks, f"So \\boxed{{{question.checks['answer']}}}.", execute=False)


def test_nested_and_escaped_braces():
    assert answers.boxed("\\boxed{\\frac{1}{\\sqrt{2}}} is it") == "\\frac{1}{\\sqrt{2}}"
    assert answers.boxed("\\boxed{\\left\\{1, 2\\right.} }") == "\\left\\{1, 2\\right."
    assert answers.boxed("\\boxed{" * 50_000) is None


def test_expressions_are_compared_in_any_thread():
    pytest.importorskip("math_verify")
    found = []
    worker = threading.Thread(target=lambda: found.append(answers.same_expression("\\boxed{0.5}", "\\frac{1}{2}")))
    worker.start()
    worker.join()
    assert found == [True]


def test_mistakes_are_named(monkeypatch):
    with pytest.raises(ValueError, match="must be a number, got 'many'"):
        answers.same_number("5", "many")
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(ValueError, match=r'pip install "domino-decoding\[eval\]"'):
        answers.same_expression("\\boxed{1}", "1")
    assert answers.same_number("\\boxed{18}", "18")


def test_nothing_to_say():
    assert CODE_TASKS == ("humaneval", "mbpp")
    for task in ("mt_bench", "swe_bench", "livecodebench", "alpaca"):
        assert score(task, {}, "text", execute=True) is None
    assert score("gsm8k", {}, "\\boxed{1}", execute=True) is None
    assert score("humaneval", STUB, RIGHT, execute=False) is None
    assert score("mbpp", MBPP, "", execute=False) is None


def test_the_block_that_defines_the_function_is_taken():
    text = f"First:\n```python\ndef area(r):\n    return 0\n```\nBetter:\n```python\n{RIGHT}```\nUse:\n```python\nprint(area([1]))\n```"
    assert programs.extract(text, {"area"}) == RIGHT
    assert programs.extract(f"```\n{RIGHT}```", {"area"}) == RIGHT
    assert programs.extract(f"  ```Python\r\n{RIGHT}  ```", {"area"}) == RIGHT
    assert programs.extract(f"```python\n{RIGHT}", {"area"}) == RIGHT  # stopped at the token limit
    assert programs.extract(f"```bash\nls\n```\nand\n```python\n{RIGHT}```", {"area"}) == RIGHT
    assert programs.extract("```python\nareas = 1\n```", {"area"}).startswith("```python")
    assert programs.extract("area = lambda r: 0", {"area"}) == "area = lambda r: 0"


def test_imports_from_the_future_stay_first():
    text = f"```python\nfrom __future__ import annotations\n{RIGHT}```"
    program = programs.humaneval(text, **STUB)
    assert program.startswith("from __future__ import annotations\n")
    compile(program, "program", "exec")


@needs_sandbox
def test_programs_are_scored():
    fenced = "Here:\n```python\n{}\n```\nDone."
    assert score("humaneval", STUB, fenced.format(RIGHT), execute=True) is True
    assert score("humaneval", STUB, fenced.format(RIGHT.replace("pi", "e")), execute=True) is False
    assert score("humaneval", STUB, "I cannot.", execute=True) is False
    assert score("mbpp", MBPP, fenced.format("def double(x):\n    return 2 * x"), execute=True) is True
    assert score("mbpp", MBPP, fenced.format("def triple(x):\n    return 3 * x"), execute=True) is False
    example = "\nif __name__ == '__main__':\n    print(area(input()))"
    assert score("humaneval", STUB, fenced.format(RIGHT + example), execute=True) is True


@pytest.mark.parametrize(
    "text",
    [
        "\x00",
        "\udcff\ud800",
        "```python\n\x00```",
        "(" * 200_000,
        "1" * 5_000_000,
        "\\boxed{" * 10**5,
        "\n" * 10**6,
        "111," * 10**5,
        "```\n" * 10**5,
    ],
)
def test_no_text_breaks_the_scoring(text):
    for task in ("gsm8k", "aime24"):
        assert score(task, {"answer": "18"}, text, execute=False) is False
    if CONFINED:
        assert score("humaneval", STUB, text, execute=True) is False
        assert score("mbpp", MBPP, text, execute=True) is False
    pytest.importorskip("math_verify")
    assert score("math500", {"answer": "18"}, text, execute=False) is False


# What each program tries succeeds, and it passes, only if the sandbox lets it; OUT is a folder beside its own.
ATTACKS = {
    "fork": "import os\nfor _ in range(50):\n    if os.fork() == 0:\n        while True: pass",
    "vfork by ctypes": "import ctypes\nassert ctypes.CDLL(None).fork() > 0",
    "clone by ctypes": "import ctypes\nassert ctypes.CDLL(None).syscall(56, 17, 0, 0, 0, 0) >= 0",
    "subprocess": "import subprocess\nsubprocess.Popen(['sleep', '60'])",
    "exec": "import os\nos.execv('/bin/true', ['true'])",
    "system": "import os\nassert os.system('touch OUT/new') == 0",
    "multiprocessing": "import multiprocessing as m\nm.Process(target=print).start()",
    "threads": "import threading, time\nfor _ in range(5000):\n    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "memory": "x = bytearray(10 * 2**30)",
    "memory in steps": "x = []\nwhile True: x.append(bytearray(2**24))",
    "write": "open('OUT/new', 'w').write('x')",
    "append": "open('OUT/kept', 'a').write('x')",
    "write by number": "import os\nos.open('OUT/kept', os.O_WRONLY)",
    "truncate": "import os\nos.truncate('OUT/kept', 0)",
    "truncate on opening": "import os\nos.open('OUT/kept', os.O_RDONLY | os.O_TRUNC)",
    "write above": "open('../new', 'w')",
    "write to /dev/shm": "open('/dev/shm/domino-new', 'w')",
    "write by a link": "import os\nos.symlink('OUT/kept', 'link')\nopen('link', 'w')",
    "hard link": "import os\nos.link('OUT/kept', 'link')",
    "delete": "import os\nos.remove('OUT/kept')",
    "move away": "import os\nos.rename('OUT/kept', 'mine')",
    "move there": "import os\nopen('mine', 'w').close()\nos.rename('mine', 'OUT/kept')",
    "mode": "import os\nos.chmod('OUT/kept', 0)",
    "times": "import os\nos.utime('OUT/kept', (0, 0))",
    "new folder": "import os\nos.mkdir('OUT/folder')",
    "write by ctypes": "import ctypes\nassert ctypes.CDLL(None).open(b'OUT/new', 0o101, 0o600) >= 0",
    "socket": "import socket\nsocket.socket()",
    "bare socket": "import _socket\n_socket.socket(_socket.AF_UNIX)",
    "socket by ctypes": "import ctypes\nassert ctypes.CDLL(None).socket(2, 1, 0) >= 0",
    "raise the limits": "import resource as r\nr.setrlimit(r.RLIMIT_AS, (r.RLIM_INFINITY, r.RLIM_INFINITY))\nx = bytearray(10 * 2**30)",
    "kill the parent": "import os\nos.kill(os.getppid(), 9)",
    "kill all": "import os\nos.kill(-1, 9)",
    "kill by ctypes": "import ctypes, os\nassert ctypes.CDLL(None).kill(os.getppid(), 9) == 0",
    "kill by descriptor": "import fcntl, os\na, b = os.pipe()\nfcntl.fcntl(a, fcntl.F_SETOWN, os.getppid())",
    "trace the parent": "import ctypes, os\nassert ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0",
    "leave": "import os\nos._exit(0)",
    "leave politely": "import sys\nsys.exit(0)",
    "leave by ctypes": "import ctypes\nctypes.CDLL(None)._exit(0)",
    "leave by an exception": "raise SystemExit",
    "claim": "print('passed', flush=True)\nimport os\nfor n in range(64):\n    try: os.write(n, b'passed')\n    except OSError: pass\nos._exit(0)",
    "close": "import os\nos.closerange(0, 64)",
    "read": "input()",
    "crash": "import faulthandler\nfaulthandler._read_null()",
}  # fmt: skip
MODES = {
    "all layers": CONFINED,
    "the kernel alone": [layer for layer in CONFINED if layer != "audit"],
    "without Landlock": [layer for layer in CONFINED if layer not in ("audit", "landlock")],
}


@pytest.fixture
def marked(monkeypatch):
    """A word in the command line of every process a sandbox starts."""
    word = uuid.uuid4().hex
    monkeypatch.setattr(sandbox, "_START", f"{sandbox._START}\n# {word}")
    return word


def alive(word):
    """Processes with a word in their command line."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [file] if word.encode() in file.read_bytes() else []
        except OSError:  # gone meanwhile
            continue
    return found


@needs_sandbox
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_fail(name, mode, tmp_path, monkeypatch, marked):
    monkeypatch.setattr(sandbox, "layers", lambda: MODES[mode])
    kept = tmp_path / "kept"
    kept.write_text("kept")
    before = kept.stat()
    outcome = sandbox.run(ATTACKS[name].replace("OUT", str(tmp_path)), seconds=PATIENT)
    assert not outcome.passed
    assert outcome.reason.startswith(("exception: ", "forbidden: ", "killed: ", "exited: ", "memory")), outcome
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]
    assert kept.read_text() == "kept"
    after = kept.stat()
    assert (after.st_mode, after.st_mtime, after.st_nlink) == (before.st_mode, before.st_mtime, 1)
    assert not (tmp_path.parent / "new").exists()
    assert not Path("/dev/shm/domino-new").exists()
    assert not alive(marked)


@needs_sandbox
@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "while True: print('x' * 10**6)",
        "import time\nwhile True:\n    try: time.sleep(60)\n    except BaseException: pass",
        "import signal, threading\nfor n in (15, 14, 24): signal.signal(n, signal.SIG_IGN)\nthreading.Event().wait()",
    ],
)
def test_what_does_not_end_is_ended(program, marked):
    start = time.monotonic()
    assert sandbox.run(program, seconds=0.5) == sandbox.Outcome(False, "timeout")
    assert time.monotonic() - start < PATIENT
    assert not alive(marked)


@needs_sandbox
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("assert 1 == 2", "exception: AssertionError"),
        ("def f(:", "exception: SyntaxError"),
        ("x = bytearray(10 * 2**30)", "memory"),
        ("import os\nos.fork()", "forbidden: os.fork"),
        ("open('/etc/new', 'w')", "forbidden: open '/etc/new'"),
        ("import os\nos._exit(3)", "exited: 3"),
        ("import faulthandler\nfaulthandler._read_null()", "killed: SIGSEGV"),
        ("raise type('A\\nB' * 1000, (Exception,), {})", "exited: 0"),  # no reason of ours
    ],
)
def test_reasons(program, reason):
    assert sandbox.run(program, seconds=PATIENT) == sandbox.Outcome(False, reason)


@needs_sandbox
@pytest.mark.parametrize(
    "program",
    [
        "import collections, dataclasses, datetime, functools, heapq, itertools, math, random, re, statistics, typing",
        "import numpy\nassert numpy.linalg.det(numpy.eye(100)) == 1",
        "import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()",
        "import os\nopen('a', 'w').write('x')\nassert open('a').read() == 'x'\nos.rename('a', 'b')\nos.remove('b')",
        "import tempfile\nwith tempfile.TemporaryFile() as f: f.write(b'x')",
        "import os\nassert set(os.environ) <= {'OMP_NUM_THREADS', 'LC_CTYPE'}\nopen(os.devnull, 'w')",
        "import threading\nthreading.Thread(target=threading.Event().wait).start()",  # does not keep it waiting
    ],
)
def test_honest_programs_pass(program):
    assert sandbox.run(program, seconds=PATIENT) == sandbox.Outcome(True, "passed")


@needs_sandbox
def test_secrets_of_the_machine_are_not_readable(tmp_path):
    (tmp_path / "secret").write_text("secret")
    if "landlock" not in CONFINED:
        pytest.skip("reading is Landlock's")
    assert sandbox.run(f"open({str(tmp_path / 'secret')!r})").reason == "forbidden: Permission denied"


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux'")
def test_the_attacks_are_tried_on_linux():
    """Else the tests above were skipped: libseccomp comes with the system, its binding with the `dev` extra."""
    assert "seccomp" in CONFINED


def test_a_platform_without_seccomp_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyseccomp", None)
    assert sandbox.layers() == []
    with pytest.raises(ValueError, match=r'cannot be executed safely here.*pip install "domino-decoding\[eval\]"'):
        score("humaneval", STUB, RIGHT, execute=True)


@needs_sandbox
def test_without_the_landlock_library_nothing_is_written(monkeypatch):
    monkeypatch.setitem(sys.modules, "py_landlock", None)
    assert "landlock" not in sandbox.layers()
    assert sandbox.run("open('new', 'w')", seconds=PATIENT).reason.startswith("forbidden: ")
    assert sandbox.run("assert 1 + 1 == 2", seconds=PATIENT).passed


@needs_sandbox
def test_a_process_that_cannot_be_confined_runs_nothing(tmp_path, monkeypatch):
    broken = "import sandboxed.seccomp as s\ns.rules = lambda writing: 1 / 0\nmain()"
    monkeypatch.setattr(sandbox, "_START", sandbox._START.replace("main()\n", broken))
    with pytest.raises(ValueError, match="could not be confined: ZeroDivisionError"):
        sandbox.run(f"open({str(tmp_path / 'new')!r}, 'w')")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ValueError, match="could not be confined: status 1"):
        sandbox.run("")
    assert not list(tmp_path.iterdir())


@needs_sandbox
@pytest.mark.parametrize("writing", [True, False])
def test_the_filter_is_closed_but_for_what_is_listed(writing, tmp_path):
    """libseccomp's own account of the filter: what is not listed is refused, and only Landlock lets files be changed."""
    with open(tmp_path / "filter", "w+") as file:
        seccomp.rules(writing).export_pfc(file)
        file.seek(0)
        text = file.read()
    assert re.search(r"# default action\s+action ERRNO\(1\);", text)
    assert re.search(r"# invalid architecture action\s+action KILL_PROCESS;", text)
    for name in ("execve", "execveat", "fork", "ptrace", "socket", "kill", "chmod", "fchmodat", "utimensat", "mkdir"):
        assert f'"{name}"' not in text
    assert ('"rename' in text, '"unlink' in text, '"ftruncate"' in text) == (writing,) * 3


@needs_sandbox
def test_mbpp_answers_may_name_their_function_as_they_like():
    checks = {"test_imports": [], "test_list": ["assert remove_Occ('hello', 'l') == 'heo'"]}
    body = "(s, c):\n    i, j = s.find(c), s.rfind(c)\n    return s[:i] + s[i + 1 : j] + s[j + 1 :]\n"
    for name in ("remove_Occ", "remove_first_and_last"):
        answer = f"Here:\n```python\ndef {name}{body}```\nand so on."
        assert score("mbpp", checks, answer, execute=True) is True
    wrong = "```python\ndef other(s, c):\n    return s\n```"
    assert score("mbpp", checks, wrong, execute=True) is False
