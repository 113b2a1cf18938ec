# Writes 64 MiB into a file system, deletes them, and gives the space back. The host compares the space in use.
set -e
mkfs.ext4 -q -F /dev/vda
mount /dev/vda /mnt
head -c 64m /dev/urandom > /mnt/large
sync
echo "trim: written"
read go
rm /mnt/large
sync
fstrim -v /mnt
umount /mnt
echo "trim: given back"
read go
