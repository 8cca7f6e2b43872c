#!/usr/bin/env bash
# Compares Sandkeep with restic, borg, git, tar|zstd and cp on the same trees in
# the same run and prints tables in Markdown. For Linux; needs Go. Peers that
# are not installed are named and left out: apt-get install restic borgbackup git zstd
#
#   bench/run.sh                            # makes the trees src and app; a quarter of an hour, 20 GB of disk
#   bench/run.sh --rounds 3 src app big     # what docs/speed.md quotes; 50 GB
#   bench/run.sh --rounds 1 ~/some/project  # a copy of a tree of yours
#   bench/run.sh -h
set -euo pipefail
command -v go >/dev/null || { echo "bench/run.sh: needs Go, https://go.dev/dl/" >&2; exit 1; }
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
(cd "$(dirname "$0")/.." && go build -o "$bin/" ./cmd/... ./bench)
"$bin/bench" --bin "$bin" "$@"
