# Writes files until the host resets the machine. After the reset, each file that was durable must be there.
set -e
if [ "$(blkid -o value -s TYPE /dev/vda)" != ext4 ]; then
    mkfs.ext4 -q /dev/vda
    mount /dev/vda /mnt
    . /synced.sh
    exit 1
fi
echo "reboot: booted again"
read last
mount /dev/vda /mnt
number=0
while [ $number -lt "$last" ]; do
    number=$((number + 1))
    yes "file $number" | head -c 65536 | cmp - /mnt/$number
done
umount /mnt
fsck.ext4 -f -n /dev/vda > /dev/null
echo "reboot: $last files are there"
