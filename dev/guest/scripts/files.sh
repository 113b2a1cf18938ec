# Makes a file system of the kind $FS (ext4 or xfs) on /dev/vda, writes files, and reads them again after a check.
set -e
FS=${FS:-ext4}
case $FS in
ext4) make="mkfs.ext4 -q -F" check="fsck.ext4 -f -n" ;;
xfs) make="mkfs.xfs -q -f" check="xfs_repair -n" ;;
esac
$make /dev/vda
mount -t $FS /dev/vda /mnt
for name in 1 2 3 4 5 6 7 8; do
    mkdir /mnt/$name
    head -c 2m /dev/urandom > /mnt/$name/large
    echo $name > /mnt/$name/small
done
find /mnt -type f -exec sha256sum {} + > /tmp/sums
umount /mnt
$check /dev/vda > /tmp/check 2>&1 || { cat /tmp/check; exit 1; }
mount -t $FS /dev/vda /mnt
sha256sum -c -s /tmp/sums
umount /mnt
echo "$FS: files are the same after a check"
