#!/bin/sh
# source.sh PYTHON PACKAGE VERSION FOLDER PATH...: the Python modules and the chat templates under
# the paths of a package's source distribution, which has templates and tests that the wheel lacks.
# vLLM's is a twentieth of its wheel. pip unpacks it and then may fail, as a setup asks for torch.
set -eu
python=$1 package=$2 version=$3 to=$(realpath -m "$4")
shift 4
[ -f "$to/$version" ] && exit
at=$(mktemp -d)
trap 'rm -rf "$at"' EXIT
TMPDIR=$at "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary "$package" --no-build-isolation --no-clean \
  --dest "$at/none" "$package==$version" >"$at/log" 2>&1 || true
from=$(dirname "$(ls "$at"/pip-download-*/"$package"_*/PKG-INFO 2>/dev/null | head -n 1)")
[ -f "$from/PKG-INFO" ] || { cat "$at/log" >&2; exit 1; }
rm -rf "$to"
mkdir -p "$to"
(cd "$from" && find "$@" \( -name '*.py' -o -name '*.jinja' \) -exec cp --parents {} "$to" \;)
touch "$to/$version"
