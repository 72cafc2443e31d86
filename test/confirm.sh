#!/bin/sh
# test/confirm.sh PACKAGE PATTERN: what test/slowest -confirm calls. It runs tests of a
# package by themselves, twice, as make ran them among the others: TESTFLAGS are those
# of the inner packages, E2EFLAGS of the end-to-end ones. SINGLE is the inner package that
# runs without the race detector.
case $1 in
*/test/e2e/*) flags=$E2EFLAGS ;;
"$SINGLE") flags="$E2EFLAGS -short" ;;
*) flags=$TESTFLAGS ;;
esac
case " $flags " in
*" -race "*) export CGO_ENABLED=1 GORACE=atexit_sleep_ms=0 ;;
esac
# shellcheck disable=SC2086 # flags are words
exec "${GO:-go}" test $flags -json -count=2 -timeout 15m -run "$2" "$1"
