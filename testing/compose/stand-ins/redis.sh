#!/bin/sh
# As the official image: options are those of redis-server, and protected mode is off.
set -eu
if [ "${1#-}" != "$1" ]; then set -- redis-server "$@"; fi
if [ "$1" = redis-server ]; then set -- "$@" --protected-mode no; fi
exec "$@"
