#!/bin/bash
# Says whether the API still serves those who use it: compares it with the newest release that this commit stands on or, before
# the first release, with where this branch left origin/main or the commit before. Takes the path of buf.
set -euo pipefail
cd "$(dirname "$0")/.."
buf=$1

skip() {
    echo "buf breaking: skipped, $1"
    exit 0
}

base() {
    git describe --tags --abbrev=0 --match 'v[0-9]*' HEAD~1 2>/dev/null && return
    local fork
    if fork=$(git merge-base HEAD origin/main 2>/dev/null) && [[ $fork != $(git rev-parse HEAD) ]]; then
        echo "$fork"
    else
        git rev-parse --verify --quiet HEAD~1
    fi
}

git rev-parse --git-dir >/dev/null 2>&1 || skip "this is not a git clone"
before=$(base) || skip "there is no earlier commit here"
git cat-file -e "$before:proto/kokuban" 2>/dev/null || skip "$before has no API"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
git archive "$before" buf.yaml proto/kokuban | tar -x -C "$folder"
"$buf" breaking --against "$folder"
echo "buf breaking: nothing broken since $before"
