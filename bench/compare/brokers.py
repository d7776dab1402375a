"""The brokers of a comparison, each started with an empty data directory."""

import json
import shutil

from . import options
from .processes import External, Server, Unable, cpu_list

VELA = "vela"
# Below this a full disk would be what is measured.
DISK_FREE = 4 << 30
RUNNING = "peer"


def variants(args):
    """Names of what is compared, in order."""
    if not args.peer:
        return args.variants
    return [VELA, options.PULSAR if args.peer == options.PULSAR else RUNNING]


def command(args, variant, directory):
    """How a broker of ours is started; None for one that runs already."""
    if variant == RUNNING:
        return None
    if variant == options.PULSAR:
        start = [options.ROOT / "bench" / "peers" / options.PULSAR / "start", "--dir", directory, "--port", "0", "--web-port", "0",
                 "--cpus", args.broker_cpu, "--journal-sync", args.journal_sync, "--manifest", f"{directory}.json"]
        start += ["--heap", args.heap] if args.heap else []
        start += ["--direct", args.direct] if args.direct else []
        return [*start, *args.peer_arguments]
    start = [args.vela, "broker", "--bind", "127.0.0.1", "--port", "0", "--web-port", "0", "--data-dir", directory, "--sync", args.sync,
             "--cores", str(len(cpu_list(args.broker_cpu)))]
    if variant != VELA:
        start += ["--in-progress-request-frame-memory-limit-enabled", variant]
    return [*start, *args.vela_arguments]


class Broker:
    """One broker for one turn. Its data goes when it is stopped; its words stay."""

    def __init__(self, args, variant, work):
        self.variant, self.directory, self.manifest = variant, work / "data", None
        work.mkdir(parents=True)
        free = shutil.disk_usage(work).free
        if free < DISK_FREE:
            raise Unable(f"{work} has {free / 2**30:.1f} GiB free, {DISK_FREE / 2**30:.0f} are needed: make room, or name another place with -o")
        start = command(args, variant, self.directory)
        if start is None:
            self.server = External(args.peer, args.peer_web, args.peer_pid)
            return
        # The start script of Pulsar pins Pulsar itself. Its metrics are not read: they lack what is of interest, and cost it time.
        ours = variant != options.PULSAR
        self.server = Server(start, work / "broker", cpu_list(args.broker_cpu) if ours else None, metrics=ours)
        self.manifest = self._read_manifest(work) or {"command": [str(part) for part in start]}

    def _read_manifest(self, work):
        try:
            return json.loads((work / "data.json").read_text())
        except FileNotFoundError:
            return None

    @property
    def has_jit(self):
        return self.variant == options.PULSAR or (self.variant == RUNNING and self.server.pid is not None)

    def check(self):
        if not self.server.running():
            raise Unable(f"the broker {self.variant} has ended by itself:\n{self.server.last_words()}")

    def stop(self):
        self.server.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
