#!/bin/sh
# Takes the place of qemu-nbd in QEMU's tests: `sheave serve` serves raw images at unix sockets in the foreground, and
# qemu-nbd does everything else. Each image that sheave serves is a line of $SERVED.
image='' socket='' format='' pid='' can_serve=yes value=''
for word; do
  case $value in
    socket) socket=$word value='' ;;
    format) format=$word value='' ;;
    ignored) value='' ;;
    *)
      case $word in
        --pid-file=*) pid=${word#*=} ;;
        -k) value=socket ;;
        -f) value=format ;;
        -e | -x) value=ignored ;; # number of clients, name of the export
        -t | -v) ;;
        -*) can_serve=no ;;
        *) image=$word ;;
      esac
      ;;
  esac
done
if [ "$can_serve" = yes ] && [ "$format" = raw ] && [ -n "$socket" ] && [ -f "$image" ]; then
  [ -z "$pid" ] || echo $$ >"$pid"
  echo "$image" >>"$SERVED"
  exec "$SHEAVE" serve "file:$image" --nbd "unix:$socket" 2>>"$SERVED.log"
fi
exec "$REAL_QEMU_NBD" "$@"
