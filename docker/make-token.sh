#!/bin/sh
# Writes a random token into a file, unless the file is there: make-token.sh FILE. `make-token.sh FILE
# show` prints it, too.
set -eu

file=$1
if [ ! -s "$file" ]; then
  token=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
  # Other processes never see a partial file. The stores run as another user, and nothing else mounts
  # the volume.
  (umask 077 && printf '%s\n' "$token" >"$file.new")
  chmod 0444 "$file.new"
  mv "$file.new" "$file"
fi
case ${2-} in
  '') ;;
  show) cat "$file" ;;
  *)
    echo "make-token: unknown word $2: leave it out, or say show" >&2
    exit 2
    ;;
esac
