"""The wire between hosts: passes frames on between their network devices, late, or not at all.

It is told what to do by lines of JSON and answers each with what it has passed and lost. The kernel's own
`netem` would do the same where the kernel has it.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from typing import Any

_SET_INTERFACE, _TAP, _NO_HEADER = 0x400454CA, 0x0002, 0x1000
_MTU = 9000
_BROADCAST = 0x01  # in the first byte of the address that a frame is sent to


class Wire:
    """Devices by the number of their host, which is also the end of their hardware address."""

    def __init__(self) -> None:
        self.devices: dict[int, int] = {}
        self.cut: set[int] = set()
        self.delay, self.loss = 0.0, 0.0
        self.count = {"passed": 0, "lost": 0, "bytes": 0}
        self.late: list[tuple[float, int, bytes, list[int]]] = []
        self.order, self.chance = itertools.count(), random.Random(0)

    def add(self, number: int, process: int) -> None:
        """Give a host its end of a new device."""
        name, device = f"tap{number}", os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, _SET_INTERFACE, struct.pack("16sH22x", name.encode(), _TAP | _NO_HEADER))
        address = f"02:00:00:00:00:{number:02x}"
        subprocess.run(["ip", "link", "set", name, "address", address, "mtu", str(_MTU)], check=True)
        subprocess.run(["ip", "link", "set", name, "netns", str(process), "name", "eth0"], check=True)
        self.devices[number] = device

    def take(self, number: int) -> None:
        """Pass on what a device has sent."""
        for _ in range(64):
            try:
                frame = os.read(self.devices[number], _MTU + 64)
            except BlockingIOError:
                return
            except OSError:  # its host is gone
                os.close(self.devices.pop(number))
                return
            targets = [frame[5]] if not frame[0] & _BROADCAST else [*self.devices.keys() - {number}]
            if number in self.cut or (self.loss and self.chance.random() < self.loss):
                self.count["lost"] += 1
            elif self.delay:
                heapq.heappush(self.late, (time.monotonic() + self.delay, next(self.order), frame, targets))
            else:
                self.give(frame, targets)

    def give(self, frame: bytes, targets: list[int]) -> None:
        """Hand a frame to devices."""
        for target in targets:
            if target in self.cut or target not in self.devices:
                self.count["lost"] += 1
                continue
            try:
                os.write(self.devices[target], frame)
                self.count["passed"] += 1
                self.count["bytes"] += len(frame)
            except OSError:  # its host is gone, or not there yet
                self.count["lost"] += 1

    def told(self, what: dict[str, Any]) -> None:
        """Do what a line says."""
        if "add" in what:
            self.add(*what["add"])
        self.cut = set(what.get("cut", self.cut))
        self.delay, self.loss = what.get("delay", self.delay), what.get("loss", self.loss)
        print(json.dumps(self.count), flush=True)

    def run(self) -> None:
        """Until nobody says anything any more."""
        while True:
            wait = max(0.0, self.late[0][0] - time.monotonic()) if self.late else None
            ready = select.select([sys.stdin, *self.devices.values()], [], [], wait)[0]
            while self.late and self.late[0][0] <= time.monotonic():
                self.give(*heapq.heappop(self.late)[2:])
            for number in [each for each, device in self.devices.items() if device in ready]:
                self.take(number)
            if sys.stdin in ready:
                line = sys.stdin.readline()
                if not line:
                    return
                self.told(json.loads(line))


if __name__ == "__main__":
    Wire().run()
