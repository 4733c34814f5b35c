#!/bin/sh
# Forms a Redis Cluster: form-cluster.sh HOST:PORT[@BUS]... (an even number of nodes, at least six).
# The first half become primaries with equal shares of the slots, the others their replicas, in
# order. An existing cluster stays as it is; its nodes only learn each other's current addresses.
# DEADLINE is the number of seconds that each step may take (default 60), ANEW the command that
# deletes all data, for messages.
set -eu

deadline=${DEADLINE:-60}
primaries=$(($# / 2))
if [ $# -lt 6 ] || [ $(($# % 2)) -ne 0 ]; then
  echo "form-cluster: give an even number of nodes, at least six, as HOST:PORT" >&2
  exit 2
fi

# Address of a node as host:port, its bus port, the IP address of a host name.
address() { echo "${1%@*}"; }
bus() { case $1 in *@*) echo "${1#*@}" ;; *) echo $((${1##*:} + 10000)) ;; esac; }
ip() {
  case $1 in
    *[!0-9.]*) getent ahostsv4 "$1" | { read -r found _ && echo "$found"; } ;;
    *) echo "$1" ;;
  esac
}

# One command to one node; an error reply is a failure.
cli() {
  node=$(address "$1")
  shift
  redis-cli -e -h "${node%:*}" -p "${node##*:}" "$@"
}

# Repeats a command each 200 ms until it succeeds.
until_true() {
  what=$1
  shift
  tries=$((deadline * 5))
  until "$@" >/dev/null 2>&1; do
    tries=$((tries - 1))
    if [ "$tries" -le 0 ]; then
      echo "form-cluster: waited $deadline s for $what; to begin anew: ${ANEW:-docker compose down --volumes}" >&2
      exit 1
    fi
    sleep 0.2
  done
}

info_says() { cli "$1" CLUSTER INFO | tr -d '\r' | grep -qx "$2"; }
in_step() { cli "$1" INFO replication | tr -d '\r' | grep -qxE 'master_link_status:up|connected_slaves:[1-9][0-9]*'; }

for node in "$@"; do
  until_true "an answer of $(address "$node")" cli "$node" PING
done

first=$1
fresh=no
if info_says "$first" cluster_slots_assigned:0; then fresh=yes; fi

if [ $fresh = yes ]; then
  epoch=0
  for node in "$@"; do
    epoch=$((epoch + 1))
    cli "$node" CLUSTER SET-CONFIG-EPOCH $epoch >/dev/null
  done
fi

for node in "$@"; do
  if [ "$node" = "$first" ]; then continue; fi
  host=$(address "$node")
  cli "$first" CLUSTER MEET "$(ip "${host%:*}")" "${host##*:}" "$(bus "$node")" >/dev/null
done
for node in "$@"; do
  until_true "$(address "$node") to know all nodes" info_says "$node" "cluster_known_nodes:$#"
done

if [ $fresh = yes ]; then
  i=0
  ids=
  for node in "$@"; do
    if [ $i -lt $primaries ]; then
      cli "$node" CLUSTER ADDSLOTSRANGE $((i * 16384 / primaries)) $(((i + 1) * 16384 / primaries - 1)) >/dev/null
      ids="$ids $(cli "$node" CLUSTER MYID)"
    else
      # Take the first remaining id; the rest is for the next replicas.
      ids=${ids# }
      id=${ids%% *}
      ids=${ids#* }
      until_true "$(address "$node") to follow its primary" cli "$node" CLUSTER REPLICATE "$id"
    fi
    i=$((i + 1))
  done
fi

for node in "$@"; do
  until_true "$(address "$node") to report a sound cluster" info_says "$node" cluster_state:ok
  until_true "$(address "$node") to be in step" in_step "$node"
done
echo "form-cluster: $primaries primaries, as many replicas, all slots served"
