# Writes files while the host takes a snapshot.
set -e
mkfs.ext4 -q -F /dev/vda
mount /dev/vda /mnt
. /synced.sh
umount /mnt
fsck.ext4 -f -n /dev/vda > /dev/null
echo "snapshot: done"
