# Writes files one after the other, and tells when each is durable, until the host says a word. Used while the host
# takes a snapshot or resets the machine.
{
    read word
    touch /tmp/enough
} < /dev/console &
number=0
until [ -e /tmp/enough ]; do
    number=$((number + 1))
    yes "file $number" | head -c 65536 | dd of=/mnt/$number conv=fsync 2> /dev/null
    echo "synced $number"
done
