"""One end of ZeroMQ's patterns over libzmq, for zmtp_test.go.

push N SIZE: N messages of SIZE bytes, numbered. flood: for ever. echo: what the
ROUTER says goes back. deaf: connects and reads nothing."""

import sys
import time

import zmq

mode, at, *rest = sys.argv[1:]
ctx = zmq.Context()
s = ctx.socket(zmq.PUSH if mode in ("push", "flood") else zmq.DEALER)
s.setsockopt(zmq.SNDHWM, 0)
s.setsockopt(zmq.LINGER, 30000)
if mode not in ("push", "flood"):
    s.setsockopt(zmq.IDENTITY, b"\x01\x00")
if mode == "deaf":
    s.setsockopt(zmq.RCVHWM, 1)
    s.setsockopt(zmq.RCVBUF, 4096)
if mode == "heartbeats":
    s.setsockopt(zmq.HEARTBEAT_IVL, 20)
    s.setsockopt(zmq.HEARTBEAT_TIMEOUT, 200)
s.connect(at)
if mode == "push":
    n, size = map(int, rest)
    for i in range(n):
        s.send(i.to_bytes(8, "big") + b"x" * (size - 8), copy=False)
    s.close()
    ctx.term()
elif mode == "flood":
    i = 0
    while True:
        s.send_multipart([i.to_bytes(8, "big"), b"y" * 1000])
        i += 1
elif mode == "deaf":
    s.send(b"here")
    time.sleep(600)
else:
    s.send(b"here")
    while True:
        s.send_multipart(s.recv_multipart())
