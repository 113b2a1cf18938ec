# Verifies blocks by fio while the host adds memory, twice, and then once more. The kernel takes the buffers of fio from
# the added memory first.
set -e
echo online > /sys/devices/system/memory/auto_online_blocks
total() { awk '/MemTotal/ { print $2 }' /proc/meminfo; }
for module in first second; do
    before=$(total)
    . /verify.sh &
    verifier=$!
    echo "memory: writing"
    tries=300
    until [ "$(total)" -gt $((before + 400000)) ]; do
        tries=$((tries - 1))
        [ $tries -gt 0 ]
        sleep 0.2
    done
    wait $verifier
done
. /verify.sh
