#!/usr/bin/env bash
# What make does where a machine lacks something: no C compiler, no network, caches
# that cannot be written, somebody else's tests at the same time, ports taken. In each
# case it passes, or fails and says in one line what to do. It prints a line for each
# case, and exits with 1 if one is otherwise.
#
#	test/badday.sh            all cases, some minutes; bin/badday/*.log has what each printed
#	test/badday.sh ports      those whose name begins so
#
# The caches are made read-only by mounts of this script's own, which takes root; where
# that cannot be, these cases are not tried, and it says so.
set -uo pipefail
cd "$(dirname "$0")/.."
logs=bin/badday
mkdir -p $logs
only=${1:-}
bad=0 number=0 log=
started=()
trap 'kill "${started[@]}" 2>/dev/null; wait 2>/dev/null' EXIT

# A part of the tests, run anew, which passes through all that make test does.
some="PACKAGES=./internal/infer/... E2E=./test/e2e/relay ANEW=-count=1"

# begin NAME: whether the case is asked for.
begin() {
  [[ $1 == "$only"* ]] || return 1
  number=$((number + 1)) log=$logs/$number.log
  name=$1
}

result() { printf '%-6s %s: %s\n' "$1" "$name" "$2"; [ "$1" != BAD ] || bad=1; }

# passes COMMAND...: it must exit with 0.
passes() {
  if "$@" >$log 2>&1; then result ok "passes"; else result BAD "exit status $?: $log"; fi
}

# says WORDS COMMAND...: it must fail, and one line must have the words.
says() {
  local words=$1 rc=0 line
  shift
  "$@" >$log 2>&1 || rc=$?
  line=$(grep -E -- "$words" $log)
  if [ $rc = 0 ]; then
    if [ -n "${may_pass:-}" ]; then result ok "passes"; else result BAD "passes, though it should not: $log"; fi
  elif [ -z "$line" ] || [ "$(wc -l <<<"$line")" != 1 ]; then result BAD "exit status $rc without one line that says what to do: $log"
  else result ok "says \"$line\""; fi
}

# notes WORDS COMMAND...: it must exit with 0, and say so.
notes() {
  local words=$1
  shift
  if "$@" >$log 2>&1 && grep -Eq -- "$words" $log; then result ok "passes, and says \"$(grep -Em1 -- "$words" $log)\""; else result BAD "$log"; fi
}

# A PATH without a C compiler, and without the means to install one.
poor=$(mktemp -d)
IFS=:
for dir in $PATH; do
  for program in "$dir"/*; do
    case ${program##*/} in gcc* | cc | c++* | g++* | clang* | c89* | c99* | apt-get) continue ;; esac
    [ -x "$program" ] && [ ! -e "$poor/${program##*/}" ] && ln -s "$program" "$poor/"
  done
done
unset IFS

if begin "no C compiler, make quick"; then passes env PATH="$poor" make quick; fi
if begin "no C compiler, make test"; then notes "no C compiler: .* without the race detector \(install gcc" env PATH="$poor" make test $some; fi

offline="GOPROXY=off GOTOOLCHAIN=local"
if begin "no network, make quick"; then passes env $offline make quick; fi
if begin "no network, make test"; then passes env $offline make test $some; fi
if begin "no network, make staticcheck"; then passes env $offline make staticcheck; fi
empty=$(mktemp -d)
if begin "no network, the first run"; then says "advice: modules are missing .*: run make quick once where there is a network" env $offline GOMODCACHE="$empty" make quick; fi
if begin "no network, the first make run"; then says "advice: modules are missing .*: run make quick once where there is a network" env $offline GOMODCACHE="$empty" make run; fi

if begin "no build cache, make quick"; then says "advice: Go's build cache /proc/none cannot be written: set GOCACHE" env GOCACHE=/proc/none make quick; fi
if begin "no build cache, make test"; then says "advice: Go's build cache /proc/none cannot be written: set GOCACHE" env GOCACHE=/proc/none make test $some; fi

# locked FOLDER COMMAND...: the command where the folder cannot be written.
locked() {
  local folder=$1
  shift
  unshare -m sh -c 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"' "$folder" "$@"
}
cache=$(go env GOCACHE) modules=$(go env GOMODCACHE)
if locked "$cache" true 2>/dev/null; then
  if begin "read-only build cache, nothing new"; then make build >/dev/null && passes locked "$cache" make build; fi
  # Nobody builds with these flags, so there is something to compile. Go fails for it at
  # times only.
  if begin "read-only build cache, something new"; then may_pass=yes says "advice: Go's build cache .* cannot be written: set GOCACHE" locked "$cache" env GOFLAGS=-gcflags=weir/internal/infer/spell=-l make build; fi
  if begin "read-only module cache, make quick"; then passes locked "$modules" make quick; fi
  if begin "read-only module cache, make test"; then passes locked "$modules" make test $some; fi
  if begin "read-only module cache, empty"; then says "advice: modules are missing and Go's module cache .* cannot be written: set GOMODCACHE" locked "$empty" env GOMODCACHE="$empty" $offline make quick; fi
else
  echo "not tried: read-only caches: mounts take root"
fi

if begin "make test twice at once"; then
  make test $some >$logs/second.log 2>&1 &
  second=$!
  passes make test $some
  name+=", the second"
  if wait $second; then result ok "passes"; else result BAD "$logs/second.log"; fi
fi

# taken ADDRESS...: has the addresses in use.
taken() {
  for address in "$@"; do
    bin/weir engine --wire openai="$address" >>$logs/taken.log 2>&1 &
    started+=($!)
    until curl -so /dev/null "http://$address/health"; do kill -0 $! || return 1; sleep 0.1; done
  done
}
if [[ "ports taken" == "$only"* || $only == ports* ]]; then
  make build >/dev/null
  for port in 8000 8001; do
    taken 127.0.0.1:$port || { echo "not tried: 127.0.0.1:$port is in use by somebody else"; continue; }
    if begin "ports taken: $port, make run"; then says "127.0.0.1:$port is in use by another program; choose another with --(admin-)?listen" timeout -s INT 20 make run; fi
    kill "${started[@]}"
    wait
    started=()
  done
  if taken 127.0.0.1:8000 127.0.0.1:8001; then
    if begin "ports taken, make run on others"; then
      # make tells of the interrupt that ends it by its exit status.
      notes "^gateway +http://127.0.0.1:" sh -c 'timeout -s INT 5 make run ARGS="--listen 127.0.0.1:0 --admin-listen 127.0.0.1:0"; true'
    fi
    if begin "ports taken, make test"; then passes make test $some; fi
  fi
fi

rm -rf "$poor" "$empty"
exit $bad
