# Writes blocks of random sizes at random places by fio, with $JOBS jobs of 32 MiB each, and verifies their checksums.
set -e
JOBS=${JOBS:-1}
fio --name=verify --filename=/dev/vda --ioengine=io_uring --direct=1 --iodepth=16 --rw=randwrite --bsrange=4k-64k \
    --size=32M --numjobs=$JOBS --offset_increment=48M --verify=crc32c --verify_fatal=1 --group_reporting > /tmp/fio 2>&1 ||
    { cat /tmp/fio; exit 1; }
echo "fio: verified"
