#!/bin/sh
# After a command of Go's has failed, make calls this: it says in one line what this
# machine lacks for it, and what to do. Where the machine has what it takes it says
# nothing, as the failure is then what the command itself said. It always fails.
go=${GO:-go}
say() {
  echo "advice: $*" >&2
  exit 1
}

# writable FOLDER: whether files can be made in it. It need not exist yet.
writable() {
  mkdir -p "$1" 2>/dev/null && probe=$(mktemp "$1/probe-XXXXXX" 2>/dev/null) && rm -f "$probe"
}

command -v "$go" >/dev/null || say "there is no Go: install it from https://go.dev/dl, or say where it is, as in make GO=/usr/local/go/bin/go"
cache=$("$go" env GOCACHE)
writable "$cache" || say "Go's build cache $cache cannot be written: set GOCACHE to a folder that can, as in GOCACHE=$PWD/bin/go-build make"
# Where go list fails, either modules are missing or the source does not parse.
if ! "$go" list -deps -test ./... >/dev/null 2>&1 && ! "$go" mod download >/dev/null 2>&1; then
  modules=$("$go" env GOMODCACHE)
  writable "$modules" || say "modules are missing and Go's module cache $modules cannot be written: set GOMODCACHE to a folder that can"
  say "modules are missing and cannot be fetched (GOPROXY=$("$go" env GOPROXY)): run make quick once where there is a network; after that it needs none"
fi
exit 1
