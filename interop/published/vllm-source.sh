#!/bin/sh
# vllm-source.sh PYTHON VERSION FOLDER: vLLM's source distribution, of which FOLDER keeps the Python
# modules and the chat templates. It is a twentieth of the wheel, which has no templates. pip
# unpacks it and then fails, as its setup asks for torch.
set -eu
python=$1 version=$2 to=$(realpath -m "$3")
[ -f "$to/$version" ] && exit
at=$(mktemp -d)
trap 'rm -rf "$at"' EXIT
TMPDIR=$at "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary vllm --no-build-isolation --no-clean \
  --dest "$at/none" "vllm==$version" >"$at/log" 2>&1 || true
from=$(dirname "$(ls "$at"/pip-download-*/vllm_*/setup.py 2>/dev/null | head -n 1)")
[ -f "$from/setup.py" ] || { cat "$at/log" >&2; exit 1; }
rm -rf "$to"
mkdir -p "$to"
(cd "$from" && find vllm examples rust \( -name '*.py' -o -name '*.jinja' \) -exec cp --parents {} "$to" \; )
touch "$to/$version"
