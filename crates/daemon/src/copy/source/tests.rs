//! Pieces of files and streams.

use std::io::Write;

use super::*;

fn pieces(source: &mut Source, buf: usize) -> Vec<Piece> {
    let (mut buf, stop) = (vec![0; buf], AtomicBool::new(false));
    let mut all = Vec::new();
    loop {
        match source.next(&mut buf, &stop).expect("it can be read") {
            Piece::End => return all,
            piece => all.push(piece),
        }
    }
}

#[test]
fn a_file_with_holes() {
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let path = dir.path().join("a.img");
    let file = File::create(&path).expect("a file");
    file.write_all_at(&[1; 8192], 1 << 20).expect("written");
    file.set_len((2 << 20) + 100).expect("grown");
    file.sync_all().expect("synced");
    let mut source = Source::open(&path).expect("opened");
    assert_eq!(source.size(), Some((2 << 20) + 100));
    let found = pieces(&mut source, 1 << 20);
    let wanted = [Piece::Hole(1 << 20), Piece::Data(8192), Piece::Hole((1 << 20) - 8192 + 100)];
    if found != wanted {
        // On a file system without holes everything is data.
        assert_eq!(found, [Piece::Data(1 << 20), Piece::Data(1 << 20), Piece::Data(100)]);
    }
    assert_eq!(source.pos(), (2 << 20) + 100);
}

#[test]
fn a_stream_fills_the_buffer_before_it_gives_it() {
    let (reader, mut writer) = io::pipe().expect("a pipe");
    let writing = std::thread::spawn(move || {
        for _ in 0..10 {
            writer.write_all(&[7; 1000]).expect("written");
        }
    });
    let from = From::Stream { stream: File::from(std::os::fd::OwnedFd::from(reader)) };
    let mut source = Source { name: "pipe".into(), from, pos: 0 };
    assert_eq!(source.size(), None);
    assert_eq!(pieces(&mut source, 4096), [Piece::Data(4096), Piece::Data(4096), Piece::Data(1808)]);
    writing.join().expect("it ended");
}

#[test]
fn ctrl_c_ends_the_wait_for_a_pipe() {
    let (reader, _writer) = io::pipe().expect("a pipe");
    let from = From::Stream { stream: File::from(std::os::fd::OwnedFd::from(reader)) };
    let mut source = Source { name: "pipe".into(), from, pos: 0 };
    let stop = std::sync::Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    let setter = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        // Relaxed: the flag carries nothing but itself.
        flag.store(true, Ordering::Relaxed);
    });
    assert_eq!(source.next(&mut [0; 4096], &stop).expect("no error"), Piece::Stopped);
    setter.join().expect("it ended");
}

#[test]
fn images_of_other_formats_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("image");
    let vdi = [&[b'<'; 64][..], b"\x7f\x10\xda\xbe\x01\0\x01\0"].concat();
    let others: [(&[u8], &str, &str); 16] = [
        (b"QFI\xfb\0\0\0\x03", "qcow2", "qemu-img convert -f qcow2"),
        (b"KDMV\x01\0\0\0", "vmdk", "qemu-img convert -f vmdk"),
        (b"# Disk DescriptorFile\nversion=1\n", "vmdk", "qemu-img convert -f vmdk"),
        (b"vhdxfile", "vhdx", "qemu-img convert -f vhdx"),
        (b"conectix", "vpc", "qemu-img convert -f vpc"),
        (&vdi, "vdi", "qemu-img convert -f vdi"),
        (b"QED\0\0\0\x01\0", "qed", "qemu-img convert -f qed"),
        (b"WithoutFreeSpace\x02\0\0\0", "parallels", "qemu-img convert -f parallels"),
        (b"WithouFreSpacExt\x02\0\0\0", "parallels", "qemu-img convert -f parallels"),
        (b"LUKS\xba\xbe\0\x02", "LUKS", "cryptsetup open"),
        (b"\x1f\x8b\x08\0", "gzip", "gzip -dc"),
        (b"\xfd7zXZ\0\0\x04", "xz", "xz -dc"),
        (b"\x28\xb5\x2f\xfd", "zstd", "zstd -dc"),
        (b"\x04\x22\x4d\x18", "lz4", "lz4 -dc"),
        (b"BZh91AY&SY", "bzip2", "bzip2 -dc"),
        (b"PK\x03\x04", "zip", "unzip -p"),
    ];
    for (head, format, fix) in others {
        std::fs::write(&path, head).expect("a file");
        let error = Source::open(&path).expect_err(format);
        let told = error.to_string();
        assert!(error.cause().contains(format) && told.contains(fix), "{error}");
        assert!(told.contains("import - ... <"), "how it is taken as it is: {error}");
        // As a stream any content is accepted.
        let stream = File::open(&path).expect("opened");
        assert!(Source::stream(stream, "stdin".into()).size().is_none());
    }
    let mut iso = vec![0; 32768];
    iso.extend(b"\x01CD001\x01");
    let boot: &[u8] = b"\xeb\x3c\x90mkfs.fat";
    for raw in [iso.as_slice(), boot, b"BZh9 is no pi", b"QED", b"a\x7f\x10\xda\xbe", &[0; 100]] {
        std::fs::write(&path, raw).expect("a file");
        assert_eq!(Source::open(&path).expect("raw").size(), Some(raw.len() as u64));
    }
    assert!(Source::open(dir.path()).expect_err("refused").cause().contains("directory"));
    assert!(Source::open(&dir.path().join("none")).expect_err("refused").cause().contains("cannot read"));
}
