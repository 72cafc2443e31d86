#!/usr/bin/env bash
# test/again.sh CMD...: run a command that fetches something, and where it fails run it
# again, after 5 s and after 20 s: a registry may be busy for a moment.
for wait in 5 20 end; do
  "$@" && exit 0
  rc=$?
  [ "$wait" = end ] && exit "$rc"
  echo "$1 failed with $rc: it is tried again in $wait s" >&2
  sleep "$wait"
done
