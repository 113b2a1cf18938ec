# Waits until the disk has as many sectors as the host says, and lets the mounted ext4 on it grow.
set -e
fsck.ext4 -f -p /dev/vda > /dev/null
mount /dev/vda /mnt
before=$(stat -f -c %b /mnt)
echo "resize: $(cat /sys/block/vda/size) sectors"
read sectors
timeout 60 sh -c "until [ \$(cat /sys/block/vda/size) = $sectors ]; do sleep 0.2; done"
resize2fs /dev/vda 2> /dev/null
[ "$(stat -f -c %b /mnt)" -gt "$before" ]
# Blocks beyond the old end can be written.
head -c 64k /dev/urandom > /tmp/end
dd if=/tmp/end of=/mnt/end 2> /dev/null
umount /mnt
fsck.ext4 -f -n /dev/vda > /dev/null
echo "resize: the file system has grown"
