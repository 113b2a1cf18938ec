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
        // A file system without holes reads it all.
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
    let path = dir.path().join("a.qcow2");
    std::fs::write(&path, b"QFI\xfb0000").expect("a file");
    let error = Source::open(&path).expect_err("refused");
    assert!(error.cause().contains("qcow2") && error.to_string().contains("qemu-img convert"), "{error}");
    assert!(Source::open(dir.path()).expect_err("refused").cause().contains("directory"));
    assert!(Source::open(&dir.path().join("none")).expect_err("refused").cause().contains("cannot read"));
}
