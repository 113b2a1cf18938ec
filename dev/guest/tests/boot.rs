//! Guests that boot: the exit status of a script, its files, its input and its devices.

use std::fs;
use std::time::Duration;

use sheave_guest::{Boot, NEVER_UP};

/// A script that checks each device which `cargo xtask guest` can give to a guest, and modules that tests load.
const DEVICES: &str = "
set -e
read word
[ \"$word\" = 'a word' ]
cmp /beside.txt - <<EOF
beside
EOF
[ $(cat /sys/block/vda/size) = 2048 ]
[ $(cat /sys/block/nvme0n1/size) = 4096 ]
[ $(cat /sys/block/nvme0n1/queue/io_poll) = 1 ]
fio --name=polled --filename=/dev/nvme0n1 --ioengine=io_uring --hipri --direct=1 --rw=randrw --verify=crc32c \
    --size=1m > /tmp/fio 2>&1 || { cat /tmp/fio; exit 1; }
modprobe null_blk
[ -b /dev/nullb0 ]
modprobe ublk_drv
[ -c /dev/ublk-control ]
ping -c 1 10.0.2.2 > /dev/null
exit 7
";

#[test]
fn a_guest_has_its_devices_and_ends_with_the_status_of_its_script() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    for (name, size) in [("disk", 1 << 20), ("nvme", 2 << 20)] {
        fs::File::create(at(name)).and_then(|file| file.set_len(size)).expect("made");
    }
    fs::write(at("beside.txt"), "beside\n").expect("written");
    let boot = Boot::new(DEVICES).disk(at("disk")).nvme(at("nvme")).file(at("beside.txt"));
    let Some(mut guest) = boot.kernel("nvme.poll_queues=1").start() else { return };
    guest.say("a word");
    let ended = guest.end();
    assert_eq!(ended.code, 7, "{}", ended.output);
    assert!(ended.booted.is_some_and(|booted| booted.contains(" 6.")));
}

#[test]
fn a_guest_without_time_never_comes_up() {
    let Some(guest) = Boot::new("exit 0").limit(Duration::from_millis(100)).start() else { return };
    let ended = guest.end();
    assert_eq!((ended.code, ended.booted), (NEVER_UP, None), "{}", ended.output);
}
