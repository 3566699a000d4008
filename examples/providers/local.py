#!/usr/bin/env python3
"""A provider of machines that are agents on this host (docs/providers.md). To read, and to start from.

A machine is a folder: machine.json (what lists say), agent.toml, agent.log, data/. What there is follows from the
folders and from /proc, never from memory: this program may be killed at any time, and several may share a folder.
destroyed/ has the keys of destroyed machines: a create that comes after its destroy must not make one again."""
import argparse, contextlib, fcntl, json, os, shutil, signal, socket, subprocess, sys, time, uuid
from pathlib import Path

PORTS, PORTS_EACH, MACHINES_MAX = 10000, 100, 100  # an agent that is not told otherwise has 20000 to 32000
AGENT_GRACE, TASK_GRACE, KEYS_KEPT = 5.0, 5.0, 86400  # seconds

class Refused(Exception):
    """Class and detail of an error of the protocol."""

def folder_of(machine):
    """Ids come from outside: only those of instances name folders."""
    try:
        return ROOT / str(uuid.UUID(machine))
    except ValueError:
        return ROOT / "none"

def read(path):
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""

def processes(folder):
    """The agent of a machine, and all else that belongs to it: executors, their tasks, and whatever those started."""
    inside, agents, others, parents = os.fsencode(folder) + b"/", set(), set(), {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        fields = read(f"/proc/{pid}/stat").rpartition(b") ")[2].split()
        if not fields or fields[0] in (b"Z", b"X"):
            continue
        parents[pid] = int(fields[1])
        words = read(f"/proc/{pid}/cmdline").split(b"\0")
        works_in = b""
        with contextlib.suppress(OSError):
            works_in = os.fsencode(os.readlink(f"/proc/{pid}/cwd")) + b"/"
        if words[1:2] == [b"agent"] and inside + b"agent.toml" in words:
            agents.add(pid)
        elif words[1:2] == [b"executor"] and (works_in.startswith(inside) or words[3:4] and words[3].startswith(inside)):
            others.add(pid)
        elif b"\0NOMAD_ALLOC_DIR=" + inside in b"\0" + read(f"/proc/{pid}/environ"):
            others.add(pid)
    while new := {pid for pid, parent in parents.items() if parent in agents | others} - agents - others:
        others |= new
    return agents, others

def kill(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

def wait_until(done, seconds):
    end = time.monotonic() + seconds
    while not (finished := done()) and time.monotonic() < end:
        time.sleep(0.02)
    return finished

def create(call):
    folder = folder_of(call["key"])
    if (DESTROYED / folder.name).exists():
        raise Refused("fatal", "it was destroyed, and is not made again")
    if not (folder / "machine.json").exists():
        free = sorted(set(range(MACHINES_MAX)) - {one["slot"] for one in machines().values()})
        if not free:
            raise Refused("quota", f"{MACHINES_MAX} machines are here, and no more may be")
        folder.mkdir(exist_ok=True)
        first = PORTS + free[0] * PORTS_EACH
        ports = f"ports.dynamic_min = {first}\nports.dynamic_max = {first + PORTS_EACH - 1}\n"
        (folder / "agent.toml").write_text(call["agent_config"] + f"data_dir = {json.dumps(str(folder / 'data'))}\n" + ports)
        write(folder, {"tags": call["tags"], "slot": free[0]})
    if not processes(folder)[0]:
        with open(folder / "agent.log", "ab") as log:
            # A session of its own: the server ends this program with its whole process group.
            subprocess.Popen([QUORATE, "agent", "--config", str(folder / "agent.toml")], stdin=subprocess.DEVNULL,
                             stdout=log, stderr=log, start_new_session=True)
        wait_until(lambda: processes(folder)[0], 2)  # it shows who it is a moment after its start
    return {"provider_id": folder.name, "address": "127.0.0.1", "scope": SCOPE}

def write(folder, machine):
    (folder / "machine.new").write_text(json.dumps(machine))
    os.replace(folder / "machine.new", folder / "machine.json")

def machines():
    return {path.parent.name: json.loads(path.read_text()) for path in ROOT.glob("*/machine.json")}

def list_machines(call):
    ours = {name: one for name, one in machines().items() if one["tags"].get("quorate-cluster") == call["cluster"]}
    return {"scope": SCOPE, "machines": [{"provider_id": name, "address": "127.0.0.1", "tags": one["tags"]}
                                         for name, one in ours.items() if any(processes(ROOT / name))]}

def destroy(call):
    folder = folder_of(call["provider_id"])
    for old in (key for key in DESTROYED.iterdir() if key.stat().st_mtime < time.time() - KEYS_KEPT):
        old.unlink()
    (DESTROYED / folder.name).touch()
    kill(processes(folder)[0], signal.SIGTERM)
    wait_until(lambda: not processes(folder)[0], AGENT_GRACE)
    kill(processes(folder)[0], signal.SIGKILL)  # before its tasks: it would start them again
    kill(processes(folder)[1], signal.SIGTERM)
    wait_until(lambda: not any(processes(folder)), TASK_GRACE)
    if not wait_until(lambda: kill(set().union(*processes(folder)), signal.SIGKILL) or not any(processes(folder)), 5):
        raise Refused("transient", "some of its processes have not ended")
    shutil.rmtree(folder, ignore_errors=True)
    return {"state": "gone"}

def set_tags(call):
    folder = folder_of(call["provider_id"])
    if folder.name not in machines():
        raise Refused("fatal", "there is no such machine")
    write(folder, {**machines()[folder.name], "tags": call["tags"]})
    return {}

def describe(call):
    folder = folder_of(call["provider_id"])
    if folder.name not in machines():
        return {"state": "gone"}
    if processes(folder)[0]:
        return {"state": "up", "address": "127.0.0.1"}
    last = read(folder / "agent.log")[-200:].decode(errors="replace").strip().splitlines()
    return {"state": "broken", "address": "127.0.0.1", "words": last[-1] if last else "its log is empty"}

CALLS = {"create": create, "list": list_machines, "destroy": destroy, "set-tags": set_tags, "describe": describe}

def answer(call):
    try:
        with open(ROOT / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return {"result": CALLS[call["call"]](call)}
    except Refused as refused:
        return {"error": {"class": refused.args[0], "scope": "all", "detail": refused.args[1]}}
    except (OSError, KeyError, ValueError) as error:
        return {"error": {"class": "transient", "detail": repr(error)}}

flags = argparse.ArgumentParser(description=__doc__)
flags.add_argument("-directory", default="machines", help="where the machines' folders are")
flags.add_argument("-quorate", default=shutil.which("quorate"), help="the program quorate; default: that of PATH")
arguments = flags.parse_args()
QUORATE = arguments.quorate or flags.error("quorate is not in PATH: name it with -quorate")
ROOT = Path(arguments.directory).resolve()
DESTROYED = ROOT / "destroyed"
DESTROYED.mkdir(parents=True, exist_ok=True)
SCOPE = f"{socket.gethostname()}:{ROOT}"
print(json.dumps({"quorate_provider": 1, "name": "local"}), flush=True)
for line in sys.stdin:  # until the server closes it
    request = json.loads(line)
    print(json.dumps({"id": request["id"], **answer(request)}), flush=True)
