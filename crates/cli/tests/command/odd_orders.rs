//! Unusual sequences of requests, sent by the Python module of libnbd. The protocol allows them, but the usual clients
//! do not send them.

use std::process::Command;

use crate::daemon::{BOTH, Daemon, pools};
use crate::sheave::Said;

/// Python script that checks the answers itself. It ends with an exception if an answer is wrong.
const SCRIPT: &str = r#"
import errno, os, nbd, threading

def expect(code, work):
    try:
        work()
    except nbd.Error as error:
        assert error.errnum == code, error
        return
    raise AssertionError("it was not refused")

def connect(export, *options):
    h = nbd.NBD()
    h.set_export_name(export)
    for option in options:
        option(h)
    h.connect_uri("nbd+unix:///" + export + "?socket=nbd.sock")
    return h

# Checks on this side off: the server must judge for itself.
h = connect("va", lambda h: h.set_strict_mode(0))
size = h.get_size()
# Out of bounds, by one byte, by far, and with sums that run over.
for offset, count in [(size, 512), (size - 512, 1024), (2**63, 512), (2**64 - 512, 512)]:
    expect(errno.EINVAL, lambda: h.pread(count, offset))
    expect(errno.ENOSPC, lambda: h.pwrite(b"x" * count, offset))
expect(errno.EINVAL, lambda: h.pread(33 << 20, 0))
assert h.pread(512, 0) == b"\0" * 512, "and goes on"

# Many at once, answered in any order, their pieces overlapping; flushes between them.
cookies = []
for i in range(64):
    buf = nbd.Buffer.from_bytearray(bytearray([i + 1]) * 65536)
    cookies.append(h.aio_pwrite(buf, i * 65536))
    if i % 7 == 0:
        cookies.append(h.aio_flush())
while h.aio_in_flight() > 0:
    h.poll(-1)
for i in (0, 1, 31, 63):
    assert h.pread(65536, i * 65536) == bytes([i + 1]) * 65536, i

# Zero it, trim it, ask for its map, with each flag that was told.
h.zero(65536, 0, nbd.CMD_FLAG_NO_HOLE)
h.trim(65536, 65536, nbd.CMD_FLAG_FUA)
assert h.pread(131072, 0) == b"\0" * 131072
if h.can_fast_zero():
    h.zero(65536, 131072, nbd.CMD_FLAG_FAST_ZERO)
h.cache(65536, 0)

# What is not of whole blocks, which the server has told, is refused, whichever end is odd.
least = h.get_block_size(nbd.SIZE_MINIMUM)
assert least in (1, 512, 4096), least
if least > 1:
    for offset, count in [(least - 1, least), (0, least + 1), (1, 1)]:
        expect(errno.EINVAL, lambda: h.pwrite(b"x" * count, offset))
        expect(errno.EINVAL, lambda: h.pread(count, offset))
h.pwrite(b"a" * least, least)
assert h.pread(3 * least, 0) == b"\0" * least + b"a" * least + b"\0" * least

# Who did not ask for block sizes may ask for any bytes.
def any_bytes():
    return connect("vb", lambda h: h.set_strict_mode(0), lambda h: h.set_request_block_size(False))
a = any_bytes()
a.pwrite(b"x" * 4096, 0)
a.pwrite(b"hello", 3)
assert a.pread(10, 0) == b"xxxhelloxx"
a.zero(2000, 1, nbd.CMD_FLAG_FUA)
a.zero(5, 3000, nbd.CMD_FLAG_NO_HOLE)
a.trim(700, 3500)
assert a.pread(3500, 0) == b"x" + b"\0" * 2000 + b"x" * 999 + b"\0" * 5 + b"x" * 495
a.pwrite(b"z" * 70001, 12345, nbd.CMD_FLAG_FUA)
assert a.pread(70003, 12344) == b"\0" + b"z" * 70001 + b"\0"
a.pwrite(b"end", size - 3)
assert a.pread(3, size - 3) == b"end"
expect(errno.ENOSPC, lambda: a.pwrite(b"over", size - 3))
expect(errno.ENOTSUP, lambda: a.zero(77, 99, nbd.CMD_FLAG_FAST_ZERO))
# Several write their parts of the same blocks, and none loses any.
def part(number):
    of = any_bytes()
    for turn in range(50):
        of.pwrite(bytes([number * 31 + turn]) * 97, 200000 + number * 97)
threads = [threading.Thread(target=part, args=(number,)) for number in range(6)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert a.pread(6 * 97, 200000) == b"".join(bytes([number * 31 + 49]) * 97 for number in range(6))
a.shutdown()

# A map in several contexts at once, in a window that ends within an extent.
def both(h):
    h.add_meta_context("base:allocation")
    h.add_meta_context("qemu:allocation-depth")
m = connect("va", both)
seen = {}
def extents(context, offset, entries, error):
    seen.setdefault(context, []).append((offset, list(entries)))
m.block_status(3 * 4096, 4096, extents)
assert set(seen) == {"base:allocation", "qemu:allocation-depth"}, seen
assert all(sum(entries[0::2]) >= 1 for rows in seen.values() for _, entries in rows), seen

# Options in any order before an export is chosen, an export that is not there, then one that is.
o = nbd.NBD()
o.set_opt_mode(True)
o.connect_unix("nbd.sock")
names = []
o.opt_list(lambda name, description: names.append(name))
assert sorted(names) == ["va", "vb"], names
o.set_export_name("none")
expect(errno.ENOENT, o.opt_info)
o.set_export_name("vb")
o.opt_info()
assert o.get_size() == size
o.opt_list(lambda name, description: None)
o.opt_go()
assert o.can_multi_conn() and not o.is_read_only()
o.shutdown()

# Without structured replies, and without any of the newer things.
old = connect("vb", lambda h: h.set_request_structured_replies(False), lambda h: h.set_handshake_flags(0))
old.pwrite(b"old!" * 1024, 8192)
assert old.pread(4096, 8192) == b"old!" * 1024

# One that goes in the middle of what it sends leaves the others as they are.
dying = connect("va")
for i in range(16):
    dying.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(1 << 20)), 0)
del dying
assert h.pread(4096, 8 << 20) == b"\0" * 4096
h.shutdown()
print("all of it")
"#;

#[test]
fn odd_orders_by_libnbds_python_are_answered_as_the_protocol_has_it() {
    // The package with `nbdsh` also has the Python module.
    if sheave_testkit::require("nbdsh").is_none() {
        return;
    }
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, BOTH);
    std::fs::write(dir.path("odd.py"), SCRIPT).expect("written");
    let mut command = Command::new("/usr/bin/python3");
    command.arg("odd.py").current_dir(dir.path(""));
    let said = Said::of(command.output().expect("it runs"));
    assert!(said.code == 0 && said.out.contains("all of it"), "{}{}\n{}", said.out, said.err, daemon.said());
    daemon.end();
    for pool in ["a", "b"] {
        dir.ok(&format!("pool check {pool}.img"));
    }
}
