#!/bin/sh
# Writes a random token into a file, unless the file is there: make-token.sh FILE.
set -eu

file=$1
[ -s "$file" ] && exit 0
token=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
# Whoever sees the file sees the whole token. The stores run as another user, and nobody else mounts its volume.
(umask 077 && printf '%s\n' "$token" >"$file.new")
chmod 0444 "$file.new"
mv "$file.new" "$file"
