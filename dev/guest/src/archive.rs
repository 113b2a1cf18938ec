//! An archive in cpio's format `newc`, from which the kernel makes the root file system of a guest.
//!
//! Owns the format. The kernel unpacks several archives that follow each other in one file.

use std::collections::BTreeSet;

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_777;
/// Name of the entry that ends an archive.
const TRAILER: &str = "TRAILER!!!";

#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    directories: BTreeSet<String>,
}

impl Archive {
    /// Adds a file, and its directories before it. `permissions` are those of `chmod`.
    pub fn file(&mut self, path: &str, permissions: u32, content: &[u8]) {
        self.directories(path);
        self.entry(path, FILE | permissions, content);
    }

    /// Adds a symbolic link, and its directories before it.
    pub fn link(&mut self, path: &str, target: &str) {
        self.directories(path);
        self.entry(path, LINK, target.as_bytes());
    }

    /// Ends the archive, and returns its bytes.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry(TRAILER, 0, &[]);
        self.bytes
    }

    fn directories(&mut self, path: &str) {
        for (at, _) in path.match_indices('/') {
            if self.directories.insert(path[..at].to_owned()) {
                self.entry(&path[..at], DIRECTORY, &[]);
            }
        }
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        // Inode, mode, user, group, links, time of change, size, four device numbers, length of the name, checksum.
        let name = path.len() as u32 + 1;
        let fields = [self.entries, mode, 0, 0, 1, 0, content.len() as u32, 0, 0, 0, 0, name, 0];
        self.bytes.extend(b"070701");
        self.bytes.extend(fields.iter().flat_map(|field| format!("{field:08x}").into_bytes()));
        self.bytes.extend(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_contents_begin_at_multiples_of_four() {
        let mut archive = Archive::default();
        archive.file("d/abc", 0o755, b"12345");
        archive.link("l", "d/abc");
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes);
        let starts: Vec<usize> = text.match_indices("070701").map(|(at, _)| at).collect();
        assert_eq!(starts, [0, 112, 236, 356]);
        let number = |at: usize| u32::from_str_radix(&text[at..at + 8], 16).expect("hexadecimal");
        // The directory, the file, the link and the end, with their modes, sizes and lengths of names.
        let entry = |start: usize| (number(start + 14), number(start + 54), number(start + 94));
        let expected = [(0o040_755, 0, 2), (0o100_755, 5, 6), (0o120_777, 5, 2), (0, 0, 11)];
        assert_eq!(starts.iter().map(|start| entry(*start)).collect::<Vec<_>>(), expected);
        assert_eq!(&bytes[112 + 110..112 + 124], b"d/abc\x0012345\0\0\0".as_slice());
    }
}
