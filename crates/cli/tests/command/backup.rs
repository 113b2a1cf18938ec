//! Incremental copies of served volumes with stock tools: nbdinfo and qemu-img list the ranges that have changed since
//! a snapshot, and qemu-img copies them.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::daemon::{BOTH, Daemon, pools, served_ok};
use crate::serve::{image, pool, serve, serve_ok};
use crate::sheave::Dir;

/// Number of each context, with length and status of its extents.
type Told = Vec<(u32, Vec<(u64, u64)>)>;
/// Start and length of a range that has changed.
type Range = (u64, u64);

/// Returns the extents that nbdinfo prints for a context, each with its type.
fn nbdinfo(dir: &Dir, spec: &str, context: &str) -> Vec<(Range, u64)> {
    let said = serve_ok(dir, spec, &format!("nbdinfo --map={context} --json \"$uri\""));
    let said: Value = serde_json::from_str(&said).expect("JSON");
    let extents = said.as_array().expect("a list").iter();
    let number = |extent: &Value, field: &str| extent[field].as_u64().expect("a number");
    extents.map(|one| ((number(one, "offset"), number(one, "length")), number(one, "type"))).collect()
}

/// Returns the changed ranges of an export according to nbdinfo.
fn dirty(dir: &Dir, spec: &str, since: &str) -> Vec<Range> {
    let all = nbdinfo(dir, spec, &format!("qemu:dirty-bitmap:since-{since}"));
    let mut at = 0;
    for ((start, len), status) in &all {
        assert!(*start == at && *len > 0 && *status < 2, "{all:?}");
        at = start + len;
    }
    all.iter().filter(|(_, status)| *status == 1).map(|(range, _)| *range).collect()
}

/// Returns the changed ranges of an export according to qemu-img. With `x-dirty-bitmap` it prints dirty ranges as
/// `"data": false`.
fn dirty_by_qemu(dir: &Dir, export: &str, since: &str) -> Vec<Range> {
    let options = format!(
        "driver=nbd,server.type=unix,server.path=${{uri#*socket=}},export={export},\
         x-dirty-bitmap=qemu:dirty-bitmap:since-{since}"
    );
    let said =
        serve_ok(dir, &format!("p.img#{export}"), &format!("qemu-img map --output=json --image-opts \"{options}\""));
    let said: Value = serde_json::from_str(&said).expect("JSON");
    let changed = said.as_array().expect("a list").iter().filter(|extent| extent["data"] == false);
    changed.map(|one| (one["start"].as_u64().expect("one"), one["length"].as_u64().expect("one"))).collect()
}

/// Copies ranges of a snapshot with qemu-img to the same offsets of a file.
fn copy(dir: &Dir, snapshot: &str, ranges: &[Range], file: &str) {
    let mut script = String::from("set -e\n");
    for (start, len) in ranges {
        script += &format!(
            "qemu-img convert -n --image-opts --target-image-opts \
             \"driver=raw,offset={start},size={len},file.driver=nbd,file.server.type=unix,\
             file.server.path=${{uri#*socket=}},file.export={snapshot}\" \
             driver=raw,offset={start},size={len},file.driver=file,file.filename={file}\n"
        );
    }
    serve_ok(dir, &format!("p.img#{snapshot}"), &script);
}

fn assert_same(dir: &Dir, snapshot: &str, file: &str) {
    dir.ok(&format!("volume export p.img#{snapshot} whole --yes"));
    assert!(std::fs::read(dir.path("whole")).expect("read") == std::fs::read(dir.path(file)).expect("read"));
}

#[test]
fn an_incremental_copy_by_stock_tools_is_the_volume() {
    let Some(dir) = pool(&["nbdinfo", "nbdcopy", "qemu-img", "qemu-io"]) else { return };
    image(&dir, "a", 3);
    serve_ok(&dir, "p.img#v", "nbdcopy --flush a \"$uri\"");
    dir.ok("volume snapshot p.img#v s0");
    serve_ok(&dir, "p.img#s0", "nbdcopy \"$uri\" copy");
    assert_same(&dir, "s0", "copy");
    let days = [
        "qemu-io -f raw -c 'write -P 9 1M 3M' -c 'write -P 7 50003k 4k' -c flush \"$uri\"",
        "qemu-io -f raw -c 'write -z -u 30M 1M' -c 'discard 40M 64k' -c 'write -z 2M 5k' -c flush \"$uri\"",
        "true",
        "qemu-io -f raw -c 'write -P 1 63M 1M' -c 'write -P 2 0 512' -c flush \"$uri\"",
    ];
    for (number, day) in days.iter().enumerate() {
        serve_ok(&dir, "p.img#v", day);
        if number == 3 {
            // The volume grows between two snapshots: data written beyond the old end counts as changed.
            dir.ok("volume resize p.img#v 80M");
            serve_ok(&dir, "p.img#v", "qemu-io -f raw -c 'write -P 4 70M 2M' -c flush \"$uri\"");
        }
        let (before, after) = (format!("s{number}"), format!("s{}", number + 1));
        dir.ok(&format!("volume snapshot p.img#v {after}"));
        let changed = dirty(&dir, &format!("p.img#{after}"), &before);
        assert_eq!(dirty_by_qemu(&dir, &after, &before), changed, "two programs, one bitmap");
        let bytes: u64 = changed.iter().map(|(_, len)| len).sum();
        assert!(bytes < 8 << 20 && (bytes == 0) == (number == 2), "{changed:?}");
        let size = if number == 3 { 80 << 20 } else { 64 << 20 };
        let file = std::fs::File::options().write(true).open(dir.path("copy")).expect("opened");
        file.set_len(size).expect("it has the new size");
        copy(&dir, &after, &changed, "copy");
        assert_same(&dir, &after, "copy");
    }
    // The volume itself can be compared with any snapshot, also after a rollback.
    dir.ok("volume rollback p.img#v s2 --yes");
    let changed = dirty(&dir, "p.img#v", "s4");
    copy(&dir, "s2", &changed, "copy");
    let file = std::fs::File::options().write(true).open(dir.path("copy")).expect("opened");
    file.set_len(64 << 20).expect("it has the old size");
    assert_same(&dir, "s2", "copy");
    dir.ok("pool check p.img");
}

#[test]
fn contexts_are_told_by_the_names_of_snapshots() {
    let Some(dir) = pool(&["nbdinfo", "qemu-io"]) else { return };
    let long = "n".repeat(255);
    dir.ok("volume create p.img#other --size 64M");
    let names = ["A.b_c-1", "_", "A.b_c", "0", &long];
    names.iter().for_each(|name| _ = dir.ok(&format!("volume snapshot p.img#v {name}")));
    dir.ok("volume snapshot p.img#other strange");
    serve_ok(&dir, "p.img#v", "qemu-io -f raw -c 'write -P 9 1M 1M' \"$uri\"");
    let told = |spec: &str| -> Vec<String> {
        let said = serve_ok(&dir, spec, "nbdinfo --json \"$uri\"");
        let said: Value = serde_json::from_str(&said).expect("JSON");
        let contexts = said["exports"][0]["contexts"].as_array().expect("contexts");
        contexts.iter().map(|context| context.as_str().expect("a name").to_owned()).collect()
    };
    let since = |names: &[&str]| -> Vec<String> {
        let names = names.iter().map(|name| format!("qemu:dirty-bitmap:since-{name}"));
        ["base:allocation", "qemu:allocation-depth"].map(str::to_owned).into_iter().chain(names).collect()
    };
    assert_eq!(told("p.img#v"), since(&[&long, "0", "A.b_c", "_", "A.b_c-1"]), "the newest first");
    assert_eq!(told("p.img#A.b_c"), since(&["_", "A.b_c-1"]), "of a snapshot the older ones");
    assert_eq!(told("p.img#strange"), since(&[]), "of the same family");
    assert_eq!(told("ram:size=1M"), ["base:allocation"]);
    for name in names {
        assert_eq!(dirty(&dir, "p.img#v", name), [(1 << 20, 1 << 20)], "{name}");
    }
    // A snapshot of another volume works as well: any two volumes or snapshots of a pool can be compared.
    assert_eq!(dirty(&dir, "p.img#v", "strange"), [(1 << 20, 1 << 20)]);
    for wrong in ["v", "other", "nobody", "", "A.b_", "A.b_c%2d1"] {
        let said = serve(&dir, "p.img#v", &format!("nbdinfo --map=qemu:dirty-bitmap:since-{wrong} \"$uri\""));
        assert!(said.code != 0 && said.err.contains("does not support metadata context"), "{wrong}: {}", said.err);
    }
}

#[test]
fn the_depth_tells_what_is_shared() {
    let Some(dir) = pool(&["nbdinfo", "qemu-io"]) else { return };
    serve_ok(&dir, "p.img#v", "qemu-io -f raw -c 'write -P 9 1M 2M' \"$uri\"");
    let depth = || nbdinfo(&dir, "p.img#v", "qemu:allocation-depth");
    assert_eq!(depth(), [((0, 1 << 20), 0), ((1 << 20, 2 << 20), 1), ((3 << 20, 61 << 20), 0)]);
    dir.ok("volume snapshot p.img#v s");
    assert_eq!(depth(), [((0, 1 << 20), 0), ((1 << 20, 2 << 20), 2), ((3 << 20, 61 << 20), 0)]);
    serve_ok(&dir, "p.img#v", "qemu-io -f raw -c 'write -P 8 2M 1M' \"$uri\"");
    let some = [((0, 1 << 20), 0), ((1 << 20, 1 << 20), 2), ((2 << 20, 1 << 20), 1), ((3 << 20, 61 << 20), 0)];
    assert_eq!(depth(), some);
}

/// NBD client that has selected metadata contexts, with structured replies or, if `wide`, with extended headers.
struct Curious {
    stream: UnixStream,
    wide: bool,
}

impl Curious {
    fn connect(dir: &Dir, export: &str, contexts: &[&str], wide: bool) -> Curious {
        let mut stream = UnixStream::connect(dir.path("nbd.sock")).expect("it answers");
        let string = |text: &str| [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat();
        let option = |number: u32, data: &[u8]| {
            [b"IHAVEOPT".as_slice(), &number.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
        };
        let names: Vec<u8> = contexts.iter().flat_map(|name| string(name)).collect();
        let queries = [string(export), (contexts.len() as u32).to_be_bytes().to_vec(), names].concat();
        let go = [string(export), vec![0, 0]].concat();
        stream.read_exact(&mut [0; 18]).expect("a greeting");
        let mode = option(if wide { 11 } else { 8 }, b"");
        stream.write_all(&[vec![0, 0, 0, 3], mode, option(10, &queries), option(7, &go)].concat()).expect("sent");
        let told: usize = contexts.iter().map(|name| 20 + 4 + name.len()).sum();
        stream.read_exact(&mut vec![0; 20 + told + 20 + 20 + 12 + 20 + 14 + 20]).expect("an export");
        Curious { stream, wide }
    }

    /// Requests the block status of the first `len` bytes.
    fn ask(&mut self, len: u32) -> Result<Told, u32> {
        self.ask_at(0, len)
    }

    /// Requests the block status of a range. Returns number and extents of each context, or the error number.
    fn ask_at(&mut self, offset: u64, len: u32) -> Result<Told, u32> {
        let magic = if self.wide { 0x21e4_1c71u32 } else { 0x2560_9513 };
        let mut bytes = [&magic.to_be_bytes(), [0, 0, 0, 7].as_slice(), &[0; 8], &offset.to_be_bytes()].concat();
        match self.wide {
            true => bytes.extend_from_slice(&u64::from(len).to_be_bytes()),
            false => bytes.extend_from_slice(&len.to_be_bytes()),
        }
        self.stream.write_all(&bytes).expect("sent");
        let mut chunks = Vec::new();
        loop {
            let mut head = vec![0; if self.wide { 32 } else { 20 }];
            self.stream.read_exact(&mut head).expect("a chunk");
            let length = &head[head.len() - 4..];
            let mut data = vec![0; u32::from_be_bytes(length.try_into().expect("four")) as usize];
            self.stream.read_exact(&mut data).expect("its data");
            let number = |at: usize| u32::from_be_bytes(data[at..at + 4].try_into().expect("four"));
            let wide = |at: usize| u64::from_be_bytes(data[at..at + 8].try_into().expect("eight"));
            match [head[6], head[7]] {
                [0, 6] => {
                    let extents: Vec<_> = (8..data.len()).step_by(16).map(|at| (wide(at), wide(at + 8))).collect();
                    assert_eq!(number(4) as usize, extents.len());
                    chunks.push((number(0), extents));
                }
                [0, 5] => {
                    let extents = (4..data.len()).step_by(8).map(|at| (number(at).into(), number(at + 4).into()));
                    chunks.push((number(0), extents.collect()));
                }
                [0x80, 1] => return Err(number(0)),
                other => panic!("a chunk of kind {other:?}"),
            }
            if head[5] & 1 != 0 {
                return Ok(chunks);
            }
        }
    }
}

#[test]
fn several_contexts_at_once_and_a_snapshot_that_goes_away() {
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, BOTH);
    let mut client = crate::daemon::Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
    assert_eq!(client.write(0, &[1; 65536]), Some(0));
    served_ok(&dir, "volume snapshot a.img#v s");
    served_ok(&dir, "volume snapshot a.img#v keep");
    assert_eq!((client.write(1 << 20, &[2; 1 << 20]), client.flush()), (Some(0), Some(0)));
    let names =
        ["qemu:dirty-bitmap:since-s", "qemu:allocation-depth", "qemu:dirty-bitmap:since-keep", "base:allocation"];
    const MIB: u64 = 1 << 20;
    let changed = vec![(MIB, 0), (MIB, 1), (14 * MIB, 0)];
    let depth = vec![(65536, 2), (MIB - 65536, 0), (MIB, 1), (14 * MIB, 0)];
    let allocated = vec![(65536, 0), (MIB - 65536, 3), (MIB, 0), (14 * MIB, 3)];
    let all = [(0, changed.clone()), (1, depth), (2, changed), (3, allocated)];
    for wide in [false, true] {
        let mut curious = Curious::connect(&dir, "va", &names, wide);
        assert_eq!(curious.ask(16 << 20).expect("an answer"), all, "wide: {wide}");
    }
    let mut both = Curious::connect(&dir, "va", &names, true);
    let mut one = Curious::connect(&dir, "va", &names[..1], false);
    let mut kept = Curious::connect(&dir, "va", &names[2..], false);
    served_ok(&dir, "volume rename a.img#s t");
    assert_eq!(one.ask(16 << 20).expect("it is the same snapshot"), all[..1]);
    // A client that compares with a snapshot does not keep it open, so the snapshot can be deleted.
    served_ok(&dir, "volume delete a.img#t --yes");
    assert_eq!((one.ask(16 << 20), both.ask(16 << 20)), (Err(22), Err(22)));
    assert_eq!(kept.ask(16 << 20).expect("the other is there").len(), 2);
    served_ok(&dir, "volume snapshot a.img#v s");
    assert_eq!(one.ask(16 << 20), Err(22), "another of that name is another");
    let mut new = Curious::connect(&dir, "va", &names[..1], false);
    assert_eq!(new.ask(16 << 20).expect("an answer"), [(0, vec![(16 * MIB, 0)])]);
    assert_eq!(client.read(1 << 20, 4096), Some(vec![2; 4096]), "and all else goes on");
    daemon.end();
}

#[test]
fn scattered_changes_are_told_in_bounded_answers() {
    const BLOCKS: u64 = 2560;
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, BOTH);
    let mut client = crate::daemon::Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
    served_ok(&dir, "volume snapshot a.img#v s");
    served_ok(&dir, "volume resize a.img#v 40M");
    let mut client = match client.flush() {
        Some(0) => crate::daemon::Nbd::connect(&dir.path("nbd.sock"), "va").expect("it has the new size"),
        other => panic!("{other:?}"),
    };
    // Every fourth block is dirty. That gives twice as many extents as fit into one answer.
    (0..BLOCKS).for_each(|at| assert_eq!(client.write(at << 14, &[1; 4096]), Some(0)));
    let names = ["qemu:dirty-bitmap:since-s", "base:allocation"];
    for wide in [false, true] {
        let mut curious = Curious::connect(&dir, "va", &names, wide);
        for (context, (changed, other)) in [(0, (1, 0)), (1, (0, 2))] {
            let (mut at, mut answers) = (0, 0);
            while at < 40 << 20 {
                let told = curious.ask_at(at, (40 << 20) - at as u32).expect("an answer");
                let extents = &told[context].1;
                assert!(told.len() == 2 && !extents.is_empty() && extents.len() <= 4096);
                for (len, status) in extents {
                    let (expected, size) = if at % 16384 == 0 { (changed, 4096) } else { (other, 12288) };
                    assert_eq!((*len, *status), (size, expected), "context {context} at {at}");
                    at += len;
                }
                answers += 1;
            }
            assert_eq!((at, answers), (40 << 20, 2), "context {context}");
        }
    }
    daemon.end();
}

#[test]
fn fifty_small_writes_are_fifty_dirty_blocks() {
    let Some(dir) = pool(&["nbdinfo", "nbdcopy", "qemu-img", "qemu-io"]) else { return };
    image(&dir, "a", 3);
    // With every block written all units are full, so the first write after a snapshot copies a whole group of units.
    // The copied blocks must not count as changed.
    serve_ok(&dir, "p.img#v", "qemu-io -f raw -c 'write -P 3 0 64M' -c flush \"$uri\"");
    serve_ok(&dir, "p.img#v", "nbdcopy --flush a \"$uri\"");
    dir.ok("volume snapshot p.img#v s0");
    serve_ok(&dir, "p.img#s0", "nbdcopy \"$uri\" copy");
    let at: Vec<u64> = (0..50u64).map(|number| (number * 311 + 7) % 16384 * 4096).collect();
    let writes: String = at.iter().map(|at| format!(" -c 'write -P 201 {at} 4k'")).collect();
    serve_ok(&dir, "p.img#v", &format!("qemu-io -f raw{writes} -c flush \"$uri\""));
    dir.ok("volume snapshot p.img#v s1");
    let changed = dirty(&dir, "p.img#s1", "s0");
    let mut expected: Vec<u64> = at;
    expected.sort_unstable();
    assert_eq!(changed, expected.iter().map(|at| (*at, 4096)).collect::<Vec<_>>());
    assert_eq!(dirty(&dir, "p.img#v", "s0"), changed, "of the volume itself too");
    copy(&dir, "s1", &changed, "copy");
    assert_same(&dir, "s1", "copy");
}
