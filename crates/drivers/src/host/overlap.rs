//! Other ways to the bytes of a file or block device: a loop device and its backing file, a partition and its disk, a
//! device-mapper or md device and the devices below it, two paths to one disk.
//!
//! Owns the search through sysfs; `claim` locks the results. Only reads, and gets the status of loop devices.
//!
//! Invariants:
//! - O1: two owners whose devices share bytes both lock a common node, at least one of them exclusively: nodes that
//!   *are* the device (`Way::Same`) and nodes that *stand on* it (`Way::Above`) are locked as strictly as the device;
//!   nodes of which it is a *part* (`Way::Below`) are locked shared, so that its neighbours (other partitions, other
//!   logical volumes) can have other owners.
//! - O2: a node that shares bytes for certain, but cannot be named or opened, is `hidden`: an owner is refused. Exempt
//!   are nodes that the kernel itself keeps apart with O_EXCL: a partition and its disk, and the devices below device
//!   mapper and md.
//! - O3: the nodes have the same order, whichever node the search began with. So if two processes begin at the same
//!   moment, one of them gets all nodes.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Largest number of nodes that are followed from one device: more than any real stack has.
const MOST_NODES: usize = 4096;

/// A file or block device, identified by numbers that are the same in all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Node {
    /// A file: the device number of its file system, and its inode.
    File(u64, u64),
    /// A block device, by its number.
    Block(u64),
}

impl Node {
    pub(super) fn of(meta: &Metadata) -> Node {
        match meta.file_type().is_block_device() {
            true => Node::Block(meta.rdev()),
            false => Node::File(meta.dev(), meta.ino()),
        }
    }
}

/// Relation of a node's bytes to those of the claimed device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    /// The device itself.
    Itself,
    /// The same bytes under another name.
    Same,
    /// Part of the device's bytes, or all of them: the node stands on the device.
    Above,
    /// The device's bytes are a part of the node's.
    Below,
}

/// A node to lock.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Found {
    pub(super) node: Node,
    pub(super) way: Way,
    /// Path by which the node is opened.
    pub(super) path: PathBuf,
    /// True if only this lock keeps users of the node away from an owner of the device; the kernel does not (O2).
    pub(super) is_needed: bool,
    /// True for a block device that the kernel itself does not hold for the device: opening it with O_EXCL then fails
    /// only if it is mounted or claimed.
    pub(super) can_be_exclusive: bool,
}

/// All nodes that share bytes with a device.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Overlaps {
    /// Nodes in the order of locking (O3).
    pub(super) found: Vec<Found>,
    /// Names of nodes that exist for certain, but cannot be opened by name (O2).
    pub(super) hidden: Vec<String>,
    /// True if sysfs cannot be read, so that nothing was searched.
    pub(super) is_blind: bool,
}

/// Returns the backing file or block device of the loop device at a path; `None` if it cannot be opened, or has none.
pub(super) type LoopStatus = fn(&Path) -> Option<Node>;

/// Places where the kernel shows its block devices.
#[derive(Clone, Debug)]
pub(super) struct Sys {
    /// `/sys`.
    pub(super) root: PathBuf,
    /// `/dev`.
    pub(super) dev: PathBuf,
    /// Function that returns the backing of a loop device.
    pub(super) status: LoopStatus,
}

/// A configured loop device.
struct Loop {
    dev: u64,
    path: PathBuf,
    /// Path of the backing file as sysfs shows it.
    backing_path: PathBuf,
    /// Backing file that the loop device itself reports. Right even if `backing_path` leads to another file by now, or
    /// to none.
    backing: Option<Node>,
}

impl Loop {
    /// Returns true if the loop device stands on this node. Uses the path only if the device itself does not report its
    /// backing file.
    fn stands_on(&self, node: Node) -> bool {
        self.backing.or_else(|| self.at_path()) == Some(node)
    }

    fn at_path(&self) -> Option<Node> {
        fs::metadata(&self.backing_path).ok().as_ref().map(Node::of)
    }
}

struct Search<'a> {
    sys: &'a Sys,
    loops: Vec<Loop>,
    seen: BTreeSet<Node>,
    out: Overlaps,
}

/// Returns all nodes that share bytes with the file or block device `own`, which is at `path`.
pub(super) fn overlaps(sys: &Sys, own: Node, path: &Path) -> Overlaps {
    let mut out = Overlaps::default();
    let Ok(loops) = sys.loops() else {
        out.is_blind = true;
        let can_be_exclusive = matches!(own, Node::Block(_));
        out.found.push(Found { node: own, way: Way::Itself, path: path.into(), is_needed: true, can_be_exclusive });
        return out;
    };
    let mut search = Search { sys, loops, seen: BTreeSet::new(), out };
    search.add(own, Way::Itself, path.into(), true, true);
    let mut same = vec![own];
    let mut at = 0;
    while let Some(node) = same.get(at).copied() {
        at += 1;
        same.extend(search.same_as(node));
    }
    let mut above = same.clone();
    while let Some(node) = above.pop() {
        above.extend(search.above(node));
    }
    let mut below = same;
    while let Some(node) = below.pop() {
        below.extend(search.below(node));
    }
    search.out.found.sort();
    search.out.hidden.dedup();
    search.out
}

impl Search<'_> {
    /// Adds a node. Returns false if it is known already, or if there are `MOST_NODES`.
    fn add(&mut self, node: Node, way: Way, path: PathBuf, is_needed: bool, can_be_exclusive: bool) -> bool {
        if self.seen.len() >= MOST_NODES || !self.seen.insert(node) {
            return false;
        }
        let can_be_exclusive = can_be_exclusive && matches!(node, Node::Block(_));
        self.out.found.push(Found { node, way, path, is_needed, can_be_exclusive });
        true
    }

    /// Returns new nodes that have exactly the bytes of this one.
    fn same_as(&mut self, node: Node) -> Vec<Node> {
        let Node::Block(dev) = node else { return Vec::new() };
        let mut found = Vec::new();
        if let Some(at) = self.loops.iter().position(|it| it.dev == dev) {
            found.extend(self.backing(at));
        } else if self.sys.is_loop_without_backing_shown(dev) {
            self.out.hidden.push(format!("the backing file of loop device {}", number(dev)));
        }
        // Only these kinds of device mapper use all of the device below; others use a part of it.
        let uuid = self.sys.attribute(dev, "dm/uuid").unwrap_or_default();
        if uuid.starts_with("CRYPT-") || uuid.starts_with("mpath-") {
            for slave in self.sys.linked(dev, "slaves") {
                let path = self.sys.node_path(slave);
                if self.add(Node::Block(slave), Way::Same, path, false, false) {
                    found.push(Node::Block(slave));
                }
            }
        }
        for twin in self.sys.twins(dev) {
            let path = self.sys.node_path(twin);
            if self.add(Node::Block(twin), Way::Same, path, true, true) {
                found.push(Node::Block(twin));
            }
        }
        found
    }

    /// Returns the node behind a loop device, unless it is known already. Adds it to `hidden` if it cannot be named
    /// (O2).
    fn backing(&mut self, at: usize) -> Option<Node> {
        let it = self.loops.get(at)?;
        let (shown, at_path) = (it.backing_path.clone(), it.at_path());
        let node = match (it.backing, at_path) {
            (Some(told), Some(found)) if told == found => found,
            (None, Some(found)) => found,
            // A block device is found by its number, whatever the path in sysfs.
            (Some(told @ Node::Block(dev)), _) => {
                let path = self.sys.node_path(dev);
                return self.add(told, Way::Same, path, true, true).then_some(told);
            }
            (told, _) if shown.to_string_lossy().ends_with(" (deleted)") => {
                // No path leads to it any more, but other loop devices may stand on it.
                let told = told?;
                return self.seen.insert(told).then_some(told);
            }
            (told, _) => {
                let of = it.path.display().to_string();
                self.out.hidden.push(format!("{}, the backing file of {of}", shown.display()));
                let told = told?;
                return self.seen.insert(told).then_some(told);
            }
        };
        self.add(node, Way::Same, shown, true, true).then_some(node)
    }

    /// Returns new nodes that stand on this one.
    fn above(&mut self, node: Node) -> Vec<Node> {
        let on_it = self.loops.iter().filter(|it| it.stands_on(node)).map(|it| (it.dev, it.path.clone()));
        let mut found = Vec::new();
        for (dev, path) in on_it.collect::<Vec<_>>() {
            if self.add(Node::Block(dev), Way::Above, path, true, true) {
                found.push(Node::Block(dev));
            }
        }
        let Node::Block(dev) = node else { return found };
        for dev in self.sys.partitions(dev).into_iter().chain(self.sys.linked(dev, "holders")) {
            let path = self.sys.node_path(dev);
            if self.add(Node::Block(dev), Way::Above, path, false, false) {
                found.push(Node::Block(dev));
            }
        }
        found
    }

    /// Returns new nodes that this one is a part of.
    fn below(&mut self, node: Node) -> Vec<Node> {
        let Node::Block(dev) = node else { return Vec::new() };
        let mut found = Vec::new();
        for dev in self.sys.disk_of(dev).into_iter().chain(self.sys.linked(dev, "slaves")) {
            let path = self.sys.node_path(dev);
            if self.add(Node::Block(dev), Way::Below, path, false, false) {
                found.push(Node::Block(dev));
            }
        }
        // A partition of a loop device is a part of the backing file, and only locks keep users of the two apart.
        if let Some(at) = self.loops.iter().position(|it| it.dev == dev)
            && let Some(node) = self.backing(at)
        {
            self.out.found.iter_mut().filter(|one| one.node == node).for_each(|one| one.way = Way::Below);
            found.push(node);
        }
        found
    }
}

fn number(dev: u64) -> String {
    format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev))
}

fn parse_dev(text: &str) -> Option<u64> {
    let (major, minor) = text.trim().split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

impl Sys {
    fn directory(&self, dev: u64) -> PathBuf {
        self.root.join("dev/block").join(number(dev))
    }

    fn attribute(&self, dev: u64, attribute: &str) -> Option<String> {
        let text = fs::read_to_string(self.directory(dev).join(attribute)).ok()?;
        Some(text.trim_end_matches('\n').to_owned())
    }

    /// Returns the node in `/dev`, by the kernel's name of the device.
    fn node_path(&self, dev: u64) -> PathBuf {
        let uevent = self.attribute(dev, "uevent").unwrap_or_default();
        let name = uevent.lines().find_map(|line| line.strip_prefix("DEVNAME="));
        // udev has links by number, too.
        self.dev.join(name.map_or_else(|| format!("block/{}", number(dev)), str::to_owned))
    }

    /// Returns the configured loop devices.
    fn loops(&self) -> std::io::Result<Vec<Loop>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.root.join("block"))?.flatten() {
            let Some(backing_path) = fs::read_to_string(entry.path().join("loop/backing_file")).ok() else { continue };
            let dev = fs::read_to_string(entry.path().join("dev")).ok().and_then(|text| parse_dev(&text));
            let Some(dev) = dev else { continue };
            let path = self.dev.join(entry.file_name());
            let backing = (self.status)(&path);
            found.push(Loop { dev, path, backing_path: backing_path.trim_end_matches('\n').into(), backing });
        }
        found.sort_by_key(|it| it.dev);
        Ok(found)
    }

    /// Returns true for a loop device whose backing file sysfs does not show.
    fn is_loop_without_backing_shown(&self, dev: u64) -> bool {
        /// Major number of loop devices.
        const LOOP_MAJOR: u32 = 7;
        let is_whole = !self.directory(dev).join("partition").exists();
        rustix::fs::major(dev) == LOOP_MAJOR && is_whole
    }

    /// Returns the devices that the links in `slaves` or `holders` lead to.
    fn linked(&self, dev: u64, kind: &str) -> Vec<u64> {
        let Ok(entries) = fs::read_dir(self.directory(dev).join(kind)) else { return Vec::new() };
        let dev_of = |entry: fs::DirEntry| parse_dev(&fs::read_to_string(entry.path().join("dev")).ok()?);
        entries.flatten().filter_map(dev_of).collect()
    }

    fn partitions(&self, dev: u64) -> Vec<u64> {
        let Ok(entries) = fs::read_dir(self.directory(dev)) else { return Vec::new() };
        let text_of = |entry: fs::DirEntry| {
            let path = entry.path();
            path.join("partition").exists().then(|| fs::read_to_string(path.join("dev")).ok()).flatten()
        };
        entries.flatten().filter_map(text_of).filter_map(|text| parse_dev(&text)).collect()
    }

    fn disk_of(&self, dev: u64) -> Option<u64> {
        let own = self.directory(dev);
        let text = own.join("partition").exists().then(|| fs::read_to_string(own.join("../dev")).ok()).flatten()?;
        parse_dev(&text)
    }

    /// Returns other paths to the same disk: disks with the same world-wide name and the same size. For a partition
    /// returns the partitions with its number on them.
    fn twins(&self, dev: u64) -> Vec<u64> {
        let Some(disk) = self.disk_of(dev) else { return self.twins_of_disk(dev) };
        let place = |dev| ["partition", "start", "size"].map(|attribute| self.attribute(dev, attribute));
        let own = place(dev);
        let others = self.twins_of_disk(disk).into_iter().flat_map(|twin| self.partitions(twin));
        others.filter(|other| place(*other) == own).collect()
    }

    fn twins_of_disk(&self, dev: u64) -> Vec<u64> {
        let Some(own) = self.world_wide_name(&self.directory(dev)) else { return Vec::new() };
        let size = self.attribute(dev, "size");
        let Ok(entries) = fs::read_dir(self.root.join("block")) else { return Vec::new() };
        let twin_of = |entry: fs::DirEntry| {
            let other = parse_dev(&fs::read_to_string(entry.path().join("dev")).ok()?)?;
            let is_twin = self.world_wide_name(&entry.path()).as_ref() == Some(&own);
            (other != dev && is_twin && self.attribute(other, "size") == size).then_some(other)
        };
        entries.flatten().filter_map(twin_of).collect()
    }

    /// Returns the world-wide name of a disk. NVMe stores it in the directory of the disk, SCSI in that of its device.
    /// Returns `None` for names that are unique to a maker only, and for names of zeroes.
    fn world_wide_name(&self, directory: &Path) -> Option<String> {
        let read = |place: &str| fs::read_to_string(directory.join(place)).ok();
        let text = read("wwid").or_else(|| read("device/wwid"))?.trim().to_owned();
        let (kind, number) = text.split_once('.')?;
        let is_unique = ["naa", "eui", "uuid", "nguid"].contains(&kind) && number.bytes().any(|digit| digit != b'0');
        is_unique.then_some(text)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A machine: its sysfs, and a directory that is its `/dev`.
    struct Machine {
        dir: tempfile::TempDir,
        sys: Sys,
    }

    /// Returns a status function for loop devices that cannot be opened, so that paths must suffice.
    fn closed(_: &Path) -> Option<Node> {
        None
    }

    impl Machine {
        fn new() -> Machine {
            let dir = tempfile::tempdir().expect("a directory");
            let root = dir.path().join("sys");
            for part in ["dev/block", "block", "devices"] {
                fs::create_dir_all(root.join(part)).expect("made");
            }
            let sys = Sys { root, dev: "/dev".into(), status: closed };
            Machine { dir, sys }
        }

        fn put(&self, name: &str, attribute: &str, text: &str) {
            let path = self.directory(name).join(attribute);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, format!("{text}\n")).expect("written");
        }

        /// Adds a partition, in the directory of its disk.
        fn directory(&self, name: &str) -> PathBuf {
            let disk = ["sda", "sdb", "sdc", "loop0"].into_iter().find(|disk| name.starts_with(disk) && name != *disk);
            let devices = self.sys.root.join("devices");
            disk.map_or_else(|| devices.join(name), |disk| devices.join(disk).join(name))
        }

        fn device(&self, name: &str, number: &str) -> &Machine {
            self.put(name, "dev", number);
            self.put(name, "uevent", &format!("MAJOR=0\nDEVNAME={name}"));
            symlink(self.directory(name), self.sys.root.join("dev/block").join(number)).expect("linked");
            if self.directory(name).parent() == Some(&self.sys.root.join("devices")) {
                symlink(self.directory(name), self.sys.root.join("block").join(name)).expect("linked");
            } else {
                self.put(name, "partition", &name[name.len() - 1..]);
            }
            self
        }

        fn holds(&self, holder: &str, slave: &str) -> &Machine {
            for (of, kind, other) in [(holder, "slaves", slave), (slave, "holders", holder)] {
                let links = self.directory(of).join(kind);
                fs::create_dir_all(&links).expect("made");
                symlink(self.directory(other), links.join(other)).expect("linked");
            }
            self
        }

        /// Returns a file that exists, outside of the simulated machine.
        fn file(&self, name: &str) -> (Node, PathBuf) {
            let path = self.dir.path().join(name);
            fs::write(&path, "bytes").expect("written");
            (Node::of(&fs::metadata(&path).expect("there")), path)
        }

        /// Returns the nodes found from here, by the last part of the path.
        fn around(&self, node: Node, path: &Path) -> Vec<(String, Way)> {
            let around = overlaps(&self.sys, node, path);
            assert!(around.hidden.is_empty() && !around.is_blind, "{around:?}");
            names(&around)
        }

        fn around_block(&self, name: &str, number: &str) -> Vec<(String, Way)> {
            self.around(block(number), &self.sys.dev.join(name))
        }
    }

    fn names(around: &Overlaps) -> Vec<(String, Way)> {
        let name = |one: &Found| one.path.file_name().expect("a name").to_string_lossy().into_owned();
        around.found.iter().map(|one| (name(one), one.way)).collect()
    }

    fn block(number: &str) -> Node {
        Node::Block(parse_dev(number).expect("a number"))
    }

    fn sorted(mut list: Vec<(&str, Way)>) -> Vec<(String, Way)> {
        list.sort_unstable();
        list.into_iter().map(|(name, way)| (name.to_owned(), way)).collect()
    }

    fn sort(mut list: Vec<(String, Way)>) -> Vec<(String, Way)> {
        list.sort();
        list
    }

    #[test]
    fn a_loop_device_and_its_backing_file_are_found_from_each_other() {
        let machine = Machine::new();
        let (node, path) = machine.file("pool.img");
        let (other, other_path) = machine.file("other.img");
        machine.device("loop0", "7:0").put("loop0", "loop/backing_file", &path.display().to_string());
        machine.device("loop1", "7:1").put("loop1", "loop/backing_file", &other_path.display().to_string());
        // Another loop device over the first one.
        machine.device("loop2", "7:2").put("loop2", "loop/backing_file", &path.display().to_string());
        let from_file = machine.around(node, &path);
        let whole = [("pool.img", Way::Itself), ("loop0", Way::Above), ("loop2", Way::Above)];
        assert_eq!(sort(from_file.clone()), sorted(whole.into()));
        let from_loop = machine.around_block("loop0", "7:0");
        let whole = [("loop0", Way::Itself), ("pool.img", Way::Same), ("loop2", Way::Above)];
        assert_eq!(sort(from_loop.clone()), sorted(whole.into()));
        // O3: a claim of the file and a claim of the loop device lock the nodes in the same order.
        let only_names = |list: Vec<(String, Way)>| list.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(only_names(from_file), only_names(from_loop));
        assert_eq!(machine.around(other, &other_path).len(), 2);
        let needed = overlaps(&machine.sys, node, &path);
        assert!(needed.found.iter().all(|one| one.is_needed), "{needed:?}");
    }

    #[test]
    fn a_backing_file_that_cannot_be_named_is_hidden() {
        let machine = Machine::new();
        machine.device("loop0", "7:0").put("loop0", "loop/backing_file", "/no/such/place/pool.img");
        let around = overlaps(&machine.sys, block("7:0"), Path::new("/dev/loop0"));
        assert_eq!(names(&around), [("loop0".to_owned(), Way::Itself)]);
        assert!(around.hidden[0].contains("/no/such/place/pool.img"), "{around:?}");
        // A deleted file cannot be opened.
        machine.put("loop0", "loop/backing_file", "/no/such/place/pool.img (deleted)");
        assert_eq!(machine.around_block("loop0", "7:0"), [("loop0".to_owned(), Way::Itself)]);
        // The path leads to another file in this mount namespace: the device itself reports another node.
        fn of_another(_: &Path) -> Option<Node> {
            Some(Node::File(1, 2))
        }
        let (_, path) = machine.file("pool.img");
        machine.put("loop0", "loop/backing_file", &path.display().to_string());
        let sys = Sys { status: of_another, ..machine.sys.clone() };
        let around = overlaps(&sys, block("7:0"), Path::new("/dev/loop0"));
        assert_eq!((around.found.len(), around.hidden.len()), (1, 1), "{around:?}");
        // The search from the file that the device reports finds the device.
        let around = overlaps(&sys, Node::File(1, 2), Path::new("/elsewhere/pool.img"));
        assert_eq!(sort(names(&around)), sorted(vec![("pool.img", Way::Itself), ("loop0", Way::Above)]));
        let machine = Machine::new();
        machine.device("loop0", "7:0");
        let around = overlaps(&machine.sys, block("7:0"), Path::new("/dev/loop0"));
        assert_eq!(around.hidden.len(), 1, "a loop device whose backing file sysfs does not show: {around:?}");
    }

    #[test]
    fn partitions_share_with_their_disk_and_not_with_each_other() {
        let machine = Machine::new();
        machine.device("sda", "8:0").device("sda1", "8:1").device("sda2", "8:2").device("sdb", "8:16");
        let disk = [("sda", Way::Itself), ("sda1", Way::Above), ("sda2", Way::Above)];
        assert_eq!(sort(machine.around_block("sda", "8:0")), sorted(disk.into()));
        assert_eq!(sort(machine.around_block("sda1", "8:1")), sorted(vec![("sda1", Way::Itself), ("sda", Way::Below)]));
        assert_eq!(machine.around_block("sdb", "8:16"), [("sdb".to_owned(), Way::Itself)]);
    }

    #[test]
    fn a_partition_of_a_loop_device_is_a_part_of_its_backing_file() {
        let machine = Machine::new();
        let (node, path) = machine.file("disk.img");
        machine.device("loop0", "7:0").device("loop0p1", "259:0").device("loop0p2", "259:1");
        machine.put("loop0", "loop/backing_file", &path.display().to_string());
        let part = [("loop0p1", Way::Itself), ("loop0", Way::Below), ("disk.img", Way::Below)];
        assert_eq!(sort(machine.around_block("loop0p1", "259:0")), sorted(part.into()));
        let whole =
            [("disk.img", Way::Itself), ("loop0", Way::Above), ("loop0p1", Way::Above), ("loop0p2", Way::Above)];
        assert_eq!(sort(machine.around(node, &path)), sorted(whole.into()));
    }

    #[test]
    fn stacks_of_device_mapper_are_followed_to_both_ends() {
        let machine = Machine::new();
        machine.device("sda", "8:0").device("sda1", "8:1").device("sdb", "8:16");
        machine.device("dm-0", "253:0").device("dm-1", "253:1").device("dm-2", "253:2").device("md0", "9:0");
        machine
            .holds("dm-0", "sda1")
            .holds("dm-1", "sda1")
            .holds("dm-1", "sdb")
            .holds("dm-2", "dm-0")
            .holds("md0", "sdb");
        machine.put("dm-0", "dm/uuid", "LVM-abc");
        machine.put("dm-2", "dm/uuid", "CRYPT-LUKS2-abc");
        let volume = [("dm-0", Way::Itself), ("dm-2", Way::Above), ("sda1", Way::Below), ("sda", Way::Below)];
        assert_eq!(sort(machine.around_block("dm-0", "253:0")), sorted(volume.into()));
        // An encrypted device has all of the bytes of the device below it.
        let crypt = [("dm-2", Way::Itself), ("dm-0", Way::Same), ("sda1", Way::Below), ("sda", Way::Below)];
        assert_eq!(sort(machine.around_block("dm-2", "253:2")), sorted(crypt.into()));
        let disk = [
            ("sda", Way::Itself),
            ("sda1", Way::Above),
            ("dm-0", Way::Above),
            ("dm-1", Way::Above),
            ("dm-2", Way::Above),
        ];
        assert_eq!(sort(machine.around_block("sda", "8:0")), sorted(disk.into()));
        let array = [("md0", Way::Itself), ("sdb", Way::Below)];
        assert_eq!(sort(machine.around_block("md0", "9:0")), sorted(array.into()));
    }

    #[test]
    fn two_paths_to_one_disk_are_one_disk() {
        let machine = Machine::new();
        machine.device("sda", "8:0").device("sdb", "8:16").device("sdc", "8:32");
        machine.device("sda1", "8:1").device("sdb1", "8:17").device("sdb2", "8:18");
        for (name, size) in [("sda", "100"), ("sdb", "100"), ("sdc", "101")] {
            machine.put(name, "size", size);
            machine.put(name, "device/wwid", "naa.5000c500a1b2c3d4");
        }
        for (name, start) in [("sda1", "8"), ("sdb1", "8"), ("sdb2", "50")] {
            machine.put(name, "start", start);
        }
        let both = [("sda", Way::Itself), ("sda1", Way::Above), ("sdb", Way::Same)];
        let parts = [("sdb1", Way::Above), ("sdb2", Way::Above)];
        assert_eq!(sort(machine.around_block("sda", "8:0")), sorted([&both[..], &parts[..]].concat()));
        let part = [("sda1", Way::Itself), ("sdb1", Way::Same), ("sda", Way::Below), ("sdb", Way::Below)];
        assert_eq!(sort(machine.around_block("sda1", "8:1")), sorted(part.into()));
        for says_nothing in ["naa.0000000000000000", "t10.ATA     QEMU HARDDISK", ""] {
            for name in ["sda", "sdb"] {
                machine.put(name, "device/wwid", says_nothing);
            }
            assert_eq!(machine.around_block("sdb", "8:16").len(), 3, "{says_nothing}");
        }
    }

    #[test]
    fn without_sysfs_nobody_has_looked() {
        let machine = Machine::new();
        let sys = Sys { root: machine.dir.path().join("missing"), ..machine.sys.clone() };
        let around = overlaps(&sys, Node::File(1, 2), Path::new("pool.img"));
        assert!(around.is_blind && around.found.len() == 1, "{around:?}");
        assert!(!around.found[0].can_be_exclusive);
    }
}
