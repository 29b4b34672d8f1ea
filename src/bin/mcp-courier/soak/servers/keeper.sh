# Keeps a server. $1: its folder; then its command line. Answers each order with its pid, empty when there is none. When
# the orders end, whatever the reason, so does the server, and its folder goes.
d=$1; shift; p=
while read -r order; do
  case $order in
    start)  "$@" </dev/null >>"$d/log" 2>&1 & p=$! ;;
    kill)   kill -9 "$p"; wait "$p"; p= ;;
    stop)   kill -CONT "$p"; kill -TERM "$p"; wait "$p"; p= ;;
    pause)  kill -STOP "$p" ;;
    resume) kill -CONT "$p" ;;
  esac 2>/dev/null
  echo "$p"
done
if [ -n "$p" ]; then kill -9 "$p"; wait "$p"; fi 2>/dev/null
rm -rf "$d"
