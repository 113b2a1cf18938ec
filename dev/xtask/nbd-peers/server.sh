#!/bin/sh
# The server of libnbd's programs: serves the file that the last argument names, at the socket that the parent passes.
# A program whose connection must fail ends without a word to its server, which then ends with it.
for image; do :; done
exec setpriv --pdeathsig TERM "$SHEAVE" serve "file:$image" 2>>"$SERVED.log"
