#!/usr/bin/env bash
# supervise.sh COMMAND...: starts the command again until it ends with status 0.
#
# An evicted or crashed worker ends with another status; its next start joins the run as a newcomer. SIGTERM and SIGINT
# go to the command, which leaves the run (pccl.leave_on); then this script ends too. The pause between two starts
# doubles from 1 s to 60 s, and is 1 s again after a start that lasted a minute.
set -u
pause=1 stopped=""
trap 'stopped=yes; kill -TERM "${child:-}" 2>/dev/null' TERM INT
while true; do
  began=$SECONDS
  "$@" &
  child=$!
  status=128
  while [ $status -gt 127 ] && kill -0 "$child" 2>/dev/null; do # a signal has interrupted the wait
    wait "$child"
    status=$?
  done
  [ -z "$stopped" ] && [ $status != 0 ] || exit $status
  [ $((SECONDS - began)) -lt 60 ] || pause=1
  echo "supervise.sh: status $status; next start in $pause s" >&2
  sleep $pause &
  child=$!
  wait "$child"
  [ -z "$stopped" ] || exit 0
  pause=$((pause < 30 ? 2 * pause : 60))
done
