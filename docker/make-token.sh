#!/bin/sh
# Writes a random token into a file, unless the file is there: make-token.sh FILE.
set -eu

file=$1
[ -s "$file" ] && exit 0
token=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
# Other processes never see a partial file. The stores run as another user, and nothing else mounts
# the volume.
(umask 077 && printf '%s\n' "$token" >"$file.new")
chmod 0444 "$file.new"
mv "$file.new" "$file"
