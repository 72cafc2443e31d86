"""What the scripts of the Python clients have in common. Each gets weir's URL as its
argument, and prints one JSON object per check, {"check": NAME, "ok": BOOL, "detail": TEXT},
and last {"checks": COUNT}."""

import json
import sys
import traceback

BASE = sys.argv[1].rstrip("/")
MODEL = "weir-sim"
ASK = "What is the weather in Bern?"
CHECKS = []


def check(f):
    """Registers a check; they run in the order in which they are written."""
    CHECKS.append(f)
    return f


def want(condition, *what):
    if not condition:
        raise AssertionError(" ".join(repr(w) for w in what) or "failed")


def words(text):
    """The simulated engine answers with words of lower-case letters."""
    want(isinstance(text, str) and text.split() and any(c.islower() for c in text), text)
    return text


def run():
    failed = 0
    for f in CHECKS:
        detail = ""
        try:
            f()
        except Exception:
            detail = traceback.format_exc()[-3000:]
            failed += 1
        print(json.dumps({"check": f.__name__, "ok": not detail, "detail": detail}), flush=True)
    print(json.dumps({"checks": len(CHECKS)}), flush=True)
    sys.exit(failed > 0)
