"""Ask for an answer over a socket with a small buffer, and read nothing for a while after its first
bytes. Prints how long it read nothing, by its own clock, and the bytes that came.

    slow.py HOST:PORT BODY SECONDS
"""
import json
import socket
import sys
import time

host, _, port = sys.argv[1].rpartition(":")
body = open(sys.argv[2], "rb").read()
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
s.settimeout(60)
s.connect((host, int(port)))
s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
          b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
came = s.recv(1000)
assert came.startswith(b"HTTP/1.1 200 "), came
count = len(came)
began = time.monotonic()
time.sleep(float(sys.argv[3]))
paused = time.monotonic() - began
while came := s.recv(1 << 16):
    count += len(came)
print(json.dumps({"paused": paused, "bytes": count}))
