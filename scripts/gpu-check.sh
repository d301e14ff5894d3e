#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: runs the gateway with NVML and compares each
# reading with nvidia-smi, idle and at work, and lets it find the process that
# listens on a replica's port by itself. Takes about a minute, changes nothing.
# Needs nvidia-smi and python3; ./switchyard (or $SWITCHYARD) is built if it is
# not there. Exit code 1: a reading differs.
set -euo pipefail
cd "$(dirname "$0")/.."

for need in nvidia-smi python3; do
  command -v "$need" >/dev/null || { echo "$need is not there: this check wants a machine with a GPU" >&2; exit 2; }
done
bin=${SWITCHYARD:-./switchyard}
[ -x "$bin" ] || go build -o "$bin" ./cmd/switchyard
"$bin" version
nvidia-smi --query-gpu=index,name,driver_version --format=csv,noheader

exec timeout 200 python3 - "$bin" <<'PYTHON'
import ctypes, json, os, signal, socket, subprocess, sys, tempfile, threading, time, urllib.request

FIELDS = ["index", "uuid", "name", "utilization.gpu", "memory.used", "memory.total", "temperature.gpu", "power.draw",
          "clocks.current.sm", "clocks.max.sm", "ecc.errors.uncorrected.volatile.total"]
# reading in /admin/state, field of nvidia-smi, its unit in ours, and how far two looks a moment apart may differ:
# (absolute, relative)
READINGS = [
    ("memory_total_bytes", "memory.total", 1 << 20, (1 << 20, 0)),
    ("memory_used_bytes", "memory.used", 1 << 20, (64 << 20, 0.02)),
    ("utilization", "utilization.gpu", 0.01, (0.25, 0)),
    ("temperature_c", "temperature.gpu", 1, (5, 0)),
    ("power_w", "power.draw", 1, (25, 0.25)),
    ("sm_clock_mhz", "clocks.current.sm", 1, (60, 0.15)),
    ("max_sm_clock_mhz", "clocks.max.sm", 1, (0, 0)),
    ("ecc_uncorrected", "ecc.errors.uncorrected.volatile.total", 1, (0, 0)),
]
bad = 0


def smi(what="--query-gpu=" + ",".join(FIELDS)):
    out = subprocess.run(["nvidia-smi", what, "--format=csv,noheader,nounits"], check=True, capture_output=True, text=True).stdout
    return [[v.strip() for v in line.split(",")] for line in out.splitlines() if line.strip()]


def state(admin):
    with urllib.request.urlopen(f"http://127.0.0.1:{admin}/admin/state", timeout=5) as r:
        return {x["name"]: x for x in json.load(r)["replicas"]}


def number(text):
    try:
        return float(text)
    except ValueError:
        return None  # [N/A], [Not Supported]


def look(when, admin):
    """One line for each reading of each GPU, ours beside theirs."""
    rows, ours = smi(), state(admin)
    for row in rows:
        theirs = dict(zip(FIELDS, row))
        gpu = ours["gpu" + theirs["index"]]["gpu"]
        dev = (gpu or {}).get("devices") or [{}]
        dev = dev[0]
        if dev.get("uuid") != theirs["uuid"] or dev.get("name") != theirs["name"]:
            yield "DIFFERS", f"{when} GPU {theirs['index']}: {dev or gpu} is not {theirs['uuid']} {theirs['name']}"
            continue
        for key, field, unit, (far, share) in READINGS:
            want, got = number(theirs[field]), dev.get(key)
            if want is not None:
                want *= unit
            if want is None and got in (None, 0):
                verdict = "both without"
            elif want is None or got is None:
                verdict = "DIFFERS"
            else:
                verdict = "ok" if abs(got - want) <= max(far, share * abs(want)) else "DIFFERS"
            yield verdict, f"{when} GPU {theirs['index']} {key:20} switchyard {got!s:>22}  nvidia-smi {want!s:>22}"


def compare(when, admin):
    """The two look a moment apart, and a clock may jump between: the best of three looks counts."""
    global bad
    for _ in range(3):
        lines = list(look(when, admin))
        differ = sum(v == "DIFFERS" for v, _ in lines)
        if not differ:
            break
        time.sleep(2)
    bad += differ
    for verdict, line in lines:
        print(f"{verdict:12} {line}")


class Load(threading.Thread):
    """Writes GPU memory over and over through the driver's own library."""

    def __init__(self):
        super().__init__(daemon=True)
        self.up, self.stop, self.why = threading.Event(), threading.Event(), None

    def run(self):
        try:
            cuda = ctypes.CDLL("libcuda.so.1")
            device, context, memory, size = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64(), 1 << 30
            for ret in (cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0),
                        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), cuda.cuCtxSetCurrent(context),
                        cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size))):
                if ret:
                    raise OSError(f"CUDA error {ret}")
            self.up.set()
            while not self.stop.is_set():
                for _ in range(50):
                    cuda.cuMemsetD32_v2(memory, ctypes.c_uint(7), ctypes.c_size_t(size // 4))
                cuda.cuCtxSynchronize()
            cuda.cuMemFree_v2(memory)
        except (OSError, AttributeError) as e:
            self.why = e
        self.up.set()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


listener = socket.create_server(("127.0.0.1", 0))  # the replica that is found by its process: this one
data, admin = free_port(), free_port()
names = [row[0] for row in smi()]
replicas = [f"  - {{name: gpu{i}, url: 'http://127.0.0.1:{n + 1}', engine: openai, gpu: {{nvml: {i}}}}}" for n, i in enumerate(names)]
replicas.append(f"  - {{name: found, url: 'http://127.0.0.1:{listener.getsockname()[1]}', engine: openai}}")
with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
    config.write(f"listen: 127.0.0.1:{data}\nadmin: {{listen: 127.0.0.1:{admin}}}\nhealth: {{interval: 1s}}\nreplicas:\n" + "\n".join(replicas) + "\n")
    config.flush()
    log = tempfile.NamedTemporaryFile("w+")
    gateway = subprocess.Popen([sys.argv[1], "serve", "-c", config.name], stderr=log)
    try:
        for _ in range(100):
            time.sleep(0.1)
            try:
                if all(x["gpu"] for x in state(admin).values()):
                    break
            except OSError:
                pass
        time.sleep(3)
        compare("idle", admin)
        load = Load()
        load.start()
        load.up.wait()
        if load.why:
            print(f"SKIP at work: no CUDA here ({load.why})")
        else:
            time.sleep(5)
            before, at = state(admin)["gpu" + names[0]]["gpu"], time.time()
            compare("at work", admin)
            time.sleep(6)
            after = state(admin)["gpu" + names[0]]["gpu"]["devices"][0]
            if "energy_j" in after:
                watts = (after["energy_j"] - before["devices"][0]["energy_j"]) / (time.time() - at)
                ok = abs(watts - after["power_w"]) <= max(30, 0.35 * after["power_w"])
                bad += not ok
                print(f"{'ok' if ok else 'DIFFERS':12} at work GPU {names[0]} energy: {watts:.1f} W on average by the counter, power_w {after['power_w']:.1f} W")
            apps = [int(row[0]) for row in smi("--query-compute-apps=pid")]
            found = state(admin)["found"]["gpu"]
            if os.getpid() in apps:
                ok = bool(found and found["devices"])
                bad += not ok
                print(f"{'ok' if ok else 'DIFFERS':12} a replica of this host is found by its process: {found and found['note']}")
            else:
                print(f"SKIP finding by process: nvidia-smi does not list process {os.getpid()} (a container of its own?): {apps}; {found and found['note']}")
            load.stop.set()
            load.join(10)
    finally:
        gateway.send_signal(signal.SIGTERM)
        gateway.wait(30)
        log.seek(0)
        print("\n".join(l for l in log.read().splitlines() if "GPU" in l or "ERROR" in l))
print("every reading agrees" if not bad else f"{bad} readings differ")
sys.exit(1 if bad else 0)
PYTHON
