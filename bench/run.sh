#!/usr/bin/env bash
# Compares Sandkeep with restic, borg, git, tar|zstd and cp on the same trees in
# the same run and prints tables in Markdown. Peers that are not installed are
# left out; on Debian: apt-get install restic borgbackup git zstd.
#
#   bench/run.sh                         # tree "src", 3 rounds, some minutes
#   bench/run.sh --rounds 5 src app big  # what the README quotes; 30 GB of disk
#   bench/run.sh --help
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
go build -o "$bin/" ./cmd/... ./bench
"$bin/bench" --bin "$bin" "$@"
