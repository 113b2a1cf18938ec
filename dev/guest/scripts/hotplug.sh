# Loses the disk and gets it again: first while nothing uses it, then while fio writes to it.
set -e
gone() { timeout 60 sh -c 'while [ -e /sys/block/vda ]; do sleep 0.2; done'; }
there() { timeout 60 sh -c 'until [ -b /dev/vda ]; do sleep 0.2; done'; }
FS=ext4
. /files.sh
echo "hotplug: idle"
gone
echo "hotplug: gone"
there
mount /dev/vda /mnt
sha256sum -c -s /tmp/sums
umount /mnt
echo "hotplug: files are the same"
fio --name=busy --filename=/dev/vda --ioengine=io_uring --direct=1 --iodepth=8 --rw=randwrite --bs=16k \
    --time_based --runtime=60 > /tmp/fio 2>&1 &
writer=$!
timeout 60 sh -c 'until [ $(awk "{ print \$5 }" /sys/block/vda/stat) -gt 200 ]; do sleep 0.2; done'
echo "hotplug: busy"
gone
if wait $writer; then
    echo "hotplug: fio wrote to a disk that is gone"
    exit 1
fi
echo "hotplug: gone"
there
. /files.sh
echo "hotplug: done"
