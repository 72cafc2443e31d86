#!/bin/sh
# test/additions.sh [COMMITS]: a commit that adds more than a thousand lines of Go, generated
# ones apart, says in its message what it made unnecessary, in a line "Unnecessary now: ...".
# It looks at the commits since the rule, as far as the clone has them.
range=${1:---since=2026-11-29T12:00Z HEAD}
bad=0
# shellcheck disable=SC2086 # a range is words
for commit in $(git log --no-merges --format=%H $range 2>/dev/null); do
  added=$(git show --numstat --format= "$commit" -- '*.go' ':!*.pb.go' | awk '{ n += $1 } END { print n + 0 }')
  if [ "$added" -gt 1000 ] && ! git show -s --format=%B "$commit" | grep -q '^Unnecessary now: ..'; then
    echo "$(git show -s --format='%h %s' "$commit"): it adds $added lines of Go, and its message has no line \"Unnecessary now: ...\"" >&2
    bad=1
  fi
done
exit $bad
