//! The search in a simulated sysfs: the parts of each kind of stack, from each of its ends.

use std::os::unix::fs::symlink;

use super::*;

/// A machine: its sysfs, and a directory that is its `/dev`.
struct Machine {
    dir: tempfile::TempDir,
    sys: Sys,
}

/// A status function for loop devices that cannot be opened, so that paths must suffice.
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

    /// A file that exists, outside of the simulated machine.
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
    let whole = [("disk.img", Way::Itself), ("loop0", Way::Above), ("loop0p1", Way::Above), ("loop0p2", Way::Above)];
    assert_eq!(sort(machine.around(node, &path)), sorted(whole.into()));
}

#[test]
fn stacks_of_device_mapper_are_followed_to_both_ends() {
    let machine = Machine::new();
    machine.device("sda", "8:0").device("sda1", "8:1").device("sdb", "8:16");
    machine.device("dm-0", "253:0").device("dm-1", "253:1").device("dm-2", "253:2").device("md0", "9:0");
    machine.holds("dm-0", "sda1").holds("dm-1", "sda1").holds("dm-1", "sdb").holds("dm-2", "dm-0").holds("md0", "sdb");
    machine.put("dm-0", "dm/uuid", "LVM-abc");
    machine.put("dm-2", "dm/uuid", "CRYPT-LUKS2-abc");
    let volume = [("dm-0", Way::Itself), ("dm-2", Way::Above), ("sda1", Way::Below), ("sda", Way::Below)];
    assert_eq!(sort(machine.around_block("dm-0", "253:0")), sorted(volume.into()));
    // An encrypted device has all of the bytes of the device below it.
    let crypt = [("dm-2", Way::Itself), ("dm-0", Way::Same), ("sda1", Way::Below), ("sda", Way::Below)];
    assert_eq!(sort(machine.around_block("dm-2", "253:2")), sorted(crypt.into()));
    let disk =
        [("sda", Way::Itself), ("sda1", Way::Above), ("dm-0", Way::Above), ("dm-1", Way::Above), ("dm-2", Way::Above)];
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
