"""What has to be known to repeat a comparison: programs, settings, machine, commands."""

import hashlib
import os
import pathlib
import platform
import subprocess
import sys
import time


def said(command, cwd=None):
    """First line that a program prints; None if it cannot be asked."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=cwd)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def commit(root):
    """The commit of a working copy, and whether files differ from it."""
    revision = said(["git", "rev-parse", "HEAD"], root)
    if revision is None:
        return None
    changed = said(["git", "status", "--porcelain"], root)
    return {"revision": revision, "dirty": bool(changed), "changed": (changed or "").splitlines()[:50]}


def binary(path, built):
    """`built`: from the commit of the manifest, by this very run."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        digest.update(file.read())
    return {"path": str(path), "version": said([str(path), "--version"]), "sha256": digest.hexdigest(), "built_by_this_run": built}


def first_value(path, key):
    try:
        for line in pathlib.Path(path).read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    except OSError:
        pass
    return None


def text_of(path):
    try:
        return pathlib.Path(path).read_text().strip()
    except OSError:
        return None


def filesystem(path):
    return said(["stat", "-f", "-c", "%T", str(path)])


def host(data):
    return {
        "cpu": first_value("/proc/cpuinfo", "model name"),
        "cpus": os.cpu_count(),
        "cpus_allowed": sorted(os.sched_getaffinity(0)),
        "memory": first_value("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "system": first_line_of_os_release(),
        "clock_source": text_of("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "frequency_governor": text_of("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "virtual_machine": " hypervisor" in (text_of("/proc/cpuinfo") or ""),
        "data_filesystem": filesystem(data),
        "python": platform.python_version(),
    }


def first_line_of_os_release():
    for line in (text_of("/etc/os-release") or "").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return None


def load_average():
    return [round(value, 2) for value in os.getloadavg()]


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def begin(root, data):
    return {"began": now(), "command": sys.argv, "commit": commit(root), "host": host(data), "load_average_before": load_average()}
