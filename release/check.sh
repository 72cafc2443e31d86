#!/usr/bin/env bash
# Holds a release to what docs/install.md promises: two builds of one commit, in
# different folders and with different caches, are equal; the archive's checksums hold;
# the image's file system runs as nobody, read-only and without a shell; systemd
# accepts the unit. It needs root for the image, and Debian's systemd for the unit.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
say() { printf '%-28s %s\n' "$1" "$2"; }

commit=$(git rev-parse HEAD) # of both, whatever is committed meanwhile
for n in one two; do
  git clone -q --no-checkout . "$work/$n/weir"
  git -C "$work/$n/weir" checkout -q "$commit"
  GOCACHE=$work/$n/cache go run -C "$work/$n/weir/release" . --out "$work/$n/dist" --version v0.0.0-check --only linux/amd64,linux/arm64 >"$work/$n.log"
done
diff -r "$work/one/dist" "$work/two/dist"
say "two builds" "equal: $(cd "$work/one/dist" && ls | wc -l) files"
(cd "$work/one/dist" && sha256sum --quiet --check SHA256SUMS)
say "checksums" "hold"

image=$(stat -c %s "$work"/one/dist/*-oci.tar)
tar xzf "$work"/one/dist/weir-*-linux-amd64.tar.gz -C "$work"
binary=$(echo "$work"/weir-*-linux-amd64/weir)
say "binary" "$(stat -c %s "$binary") bytes; image, compressed, of both: $image bytes"

# The layer of amd64, as a container's runtime would lay it out: the index of the
# layout, the index of platforms, the manifest, its one layer.
mkdir "$work/oci" "$work/root"
tar xf "$work"/one/dist/*-oci.tar -C "$work/oci"
layer=$(python3 - "$work/oci" <<'PY'
import json, sys
blob = lambda d: sys.argv[1] + "/blobs/" + d["digest"].replace(":", "/")
outer = json.load(open(sys.argv[1] + "/index.json"))["manifests"][0]
for m in json.load(open(blob(outer)))["manifests"]:
    if m["platform"]["architecture"] == "amd64":
        manifest = json.load(open(blob(m)))
        config = json.load(open(blob(manifest["config"])))["config"]
        assert config["User"] == "65532:65532" and config["Entrypoint"] == ["/weir"], config
        print(blob(manifest["layers"][0]))
PY
)
tar xzf "$layer" -C "$work/root"
say "image, unpacked" "$(du -sb "$work/root" | cut -f1) bytes"
export root=$work/root
unshare --mount --pid --fork bash -euc '
  mount --bind "$root" "$root"
  mount -o remount,ro,bind "$root"
  chroot --userspec 65532:65532 "$root" /weir version
  chroot --userspec 65532:65532 "$root" /weir up --listen 127.0.0.1:18900 --admin-listen 127.0.0.1:18901 >"'"$work"'/up.log" 2>&1 &
  gateway=$!
  for _ in $(seq 100); do
    curl -fsS http://127.0.0.1:18901/readyz >/dev/null 2>&1 && break
    sleep 0.1
  done
  curl -fsS http://127.0.0.1:18900/v1/chat/completions -H "Content-Type: application/json" \
    -d "{\"model\": \"weir-sim\", \"max_tokens\": 3, \"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}" | grep -q "\"finish_reason\":\"length\""
  kill -TERM $gateway
  wait $gateway
' || { cat "$work/up.log"; exit 1; }
say "image" "answers as nobody, read-only, without a shell; SIGTERM ends it with 0"

if command -v systemd-analyze >/dev/null; then
  # The unit names where the binary will be installed; here it is elsewhere.
  sed "s#^ExecStart=/usr/local/bin/weir#ExecStart=$binary#" integrations/systemd/weir.service >"$work/weir.service"
  systemd-analyze verify --man=no "$work/weir.service"
  say "unit" "accepted; $(systemd-analyze security --offline=true "$work/weir.service" | tail -1)"
else
  echo "no systemd-analyze: the unit was not verified (apt-get install systemd)"
  exit 1
fi
