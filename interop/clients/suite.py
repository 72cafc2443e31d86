"""What the suites of the Python clients have in common: their flags, what a check
says, when a server is at rest, and images.

main prints one JSON object per check, {"check": NAME, "ok": BOOL, "detail": TEXT},
and last {"checks": COUNT}; it exits with 1 when any check failed.
"""

import argparse
import collections
import hashlib
import json
import struct
import sys
import time
import traceback
import urllib.request
import zlib

ROOM = 16  # tokens of most answers
SAY = [{"role": "user", "content": "Tell me about low dams."}]
CHECKS = []


def check(f):
    """Registers a check; they run in the order in which they are written."""
    CHECKS.append(f)
    return f


def want(condition, *what):
    if not condition:
        raise AssertionError(" ".join(str(w) for w in what) or "failed")


def same(got, expected, what):
    want(got == expected, f"{what}: got {got!r}, want {expected!r}")


class Server:
    """The server that the flags name, with the engines behind it. A suite's own has a client."""

    def __init__(self, args):
        self.args = args
        self.base = args.base_url.rstrip("/")

    def gauge(self, name):
        """The sum of a metric's series; the metric must exist."""
        with urllib.request.urlopen(self.args.admin_url.rstrip("/") + "/metrics", timeout=60) as r:
            lines = r.read().decode().splitlines()
        values = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + "{", name + " "))]
        want(values, f"/metrics has no {name}")
        return sum(values)

    def engine(self, url):
        """What an engine itself says it has."""
        with urllib.request.urlopen(url, timeout=60) as r:
            state = json.load(r)
        return state["running"] + state["waiting"]

    def idle(self, seconds=120):
        """Waits until nothing runs any more, in the gateway and in the engines."""
        counts = [(name, lambda name=name: self.gauge(name)) for name in self.args.idle_metric]
        counts += [(url, lambda url=url: self.engine(url)) for url in self.args.engine_state]
        for name, count in counts:
            end = time.monotonic() + seconds
            while (value := count()) != 0:
                want(time.monotonic() < end, f"{name} is {value:g} after {seconds} s")
                time.sleep(0.02)

    def looked(self):
        """What the simulated engines say they looked at, and how often."""
        seen = collections.Counter()
        for url in self.args.engine_state:
            with urllib.request.urlopen(url.removesuffix("/state") + "/media", timeout=60) as r:
                seen.update((m["kind"], m["sha256"], m["bytes"], m["tokens"]) for m in json.load(r))
        return seen

    def sees(self, before, sent):
        """The engines' books must have the images sent since before, and no others.
        sent has an image and the tokens it stands for as often as it was sent."""
        if self.args.engine_state:
            expected = collections.Counter(("image", hashlib.sha256(data).hexdigest(), len(data), tokens) for data, tokens in sent)
            same(self.looked() - before, expected, "what the engines looked at")


def png(wide, high, shade):
    """An image of one shade of grey."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", wide, high, 8, 0, 0, 0, 0)  # 8 bits a pixel, grey
    rows = (b"\0" + bytes([shade]) * wide) * high
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


# Tokens of an image: one for each 28 by 28 pixels, those at its edges counted whole.
PATCHES = {(100, 57): 4 * 3, (28, 28): 1, (300, 200): 11 * 8}


def see(s, whole, streamed):
    """whole and streamed ask with images, and give text, prompt and output tokens,
    and what else must be the same of the two."""
    before, sent = s.looked(), []
    bare = whole()
    for size, patches in PATCHES.items():
        texts = []
        for shade in (1, 1, 2):
            image = png(*size, shade)
            got = whole(image)
            texts.append(got[0])
            same((len(got[0].split()), got[1] - bare[1], got[2]), (ROOM, patches, ROOM), f"words, tokens of an image of {size} and of the answer")
            same(streamed(image), got, "streamed")
            sent += [(image, patches)] * 2
        same(texts[0], texts[1], "the same image twice")
        want(len({bare[0], texts[0], texts[2]}) == 3, "another image, the same answer")
    both = [png(*size, 3) for size in PATCHES]
    got = whole(*both)
    same(got[1] - bare[1], sum(PATCHES.values()), "tokens of several images")
    want(whole(*both[::-1])[0] != got[0], "another order, the same answer")
    s.sees(before, sent + 2 * list(zip(both, PATCHES.values())))
    s.idle()


def main(suite):
    """Makes the suite of the flags, and runs the checks, or the one asked for."""
    p = argparse.ArgumentParser()
    p.add_argument("--base-url", required=True)
    p.add_argument("--admin-url", required=True)
    p.add_argument("--idle-metric", action="append", default=[], help="must be 0 when nothing runs; repeatable")
    p.add_argument("--engine-state", action="append", default=[],
                   help="URL of a simulated engine's state, whose counts must be 0 then too; repeatable")
    p.add_argument("--engine-pid", action="append", default=[], help="process of the engine at each --engine-state, which the suite may kill")
    p.add_argument("--overlong-words", type=int, default=150_000)
    p.add_argument("--only", help="run this check alone")
    p.add_argument("files", nargs="*", help="prompts of real text")
    s = suite(p.parse_args())
    failed = 0
    checks = [f for f in CHECKS if s.args.only in (None, f.__name__)]
    for f in checks:
        ok, detail = True, ""
        try:
            f(s)
        except Exception as e:  # a failed check is reported, whatever it threw
            ok, failed = False, failed + 1
            detail = str(e) if isinstance(e, AssertionError) else traceback.format_exc()
        print(json.dumps({"check": f.__name__, "ok": ok, "detail": detail}), flush=True)
    print(json.dumps({"checks": len(checks)}))
    sys.exit(failed > 0)
