#!/bin/bash
# http-ok PORT PATH: whether 127.0.0.1:PORT answers PATH with 200. For health checks in images without curl.
set -eu
exec 3<>"/dev/tcp/127.0.0.1/$1"
printf 'GET %s HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n' "$2" >&3
read -r _ status _ <&3
[ "$status" = 200 ]
