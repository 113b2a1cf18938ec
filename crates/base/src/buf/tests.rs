//! Buffers: alignment, zeroes, both origins, and the errors.

use super::*;

fn check(len: usize, align: usize) {
    let mut buf = Buf::zeroed(len, align).expect("buffer");
    assert_eq!((buf.len(), buf.align(), buf.is_empty()), (len, align, len == 0));
    assert_eq!(buf.as_ptr().addr() % align, 0);
    assert!(buf.iter().all(|&byte| byte == 0));
    buf.fill(0xa5);
    assert!(buf.iter().all(|&byte| byte == 0xa5));
    assert_eq!(buf.as_mut_ptr().cast_const(), buf.as_ptr());
}

#[test]
fn every_shape_is_aligned_zeroed_and_writable() {
    for len in [0, 1, 512, 4096, MMAP_THRESHOLD_BYTES - 1, MMAP_THRESHOLD_BYTES, 1 << 20] {
        for align in [1, 8, 512, 4096, 65536, 2 << 20] {
            check(len, align);
        }
    }
}

#[test]
fn memory_stays_put_when_the_buffer_moves_to_another_thread() {
    let buf = Buf::zeroed(4096, 4096).expect("buffer");
    let address = buf.as_ptr().addr();
    let moved = std::thread::spawn(move || buf.as_ptr().addr()).join().expect("thread");
    assert_eq!(address, moved);
}

#[test]
fn bad_shapes_are_errors() {
    assert_eq!(Buf::zeroed(1, 0).expect_err("align 0"), BufError::Align { align: 0 });
    assert_eq!(Buf::zeroed(1, 3).expect_err("align 3"), BufError::Align { align: 3 });
    assert_eq!(Buf::zeroed(1, 2 << 30).expect_err("align"), BufError::Align { align: 2 << 30 });
    let len = usize::MAX - 10;
    assert_eq!(Buf::zeroed(len, 4096).expect_err("too big"), BufError::TooBig { len, align: 4096 });
    let len = isize::MAX as usize - 4095;
    assert_eq!(Buf::zeroed(len, 4096).expect_err("no memory"), BufError::NoMem { len });
    assert!(BufError::Align { align: 3 }.to_string().contains("4096"));
}

#[test]
fn debug_shows_the_shape_and_no_bytes() {
    let mut buf = Buf::zeroed(64, 64).expect("buffer");
    buf.fill(b'S');
    let text = format!("{buf:?}");
    // Pairs of bytes, because the address in the text may contain any single number.
    let shows_bytes = ["83, 83", "53, 53", "SS"].iter().any(|bytes| text.contains(bytes));
    assert!(text.contains("len: 64") && !shows_bytes, "{text}");
}

/// Returns true if the page at this address is mapped.
fn is_mapped(address: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
    maps.lines().any(|line| {
        let (from, rest) = line.split_once('-').expect("a range");
        let to = rest.split(' ').next().expect("an end");
        let at = |hex| usize::from_str_radix(hex, 16).expect("hexadecimal");
        (at(from)..at(to)).contains(&address)
    })
}

#[test]
fn a_mapping_goes_as_a_whole() {
    for (len, align) in [(MMAP_THRESHOLD_BYTES + 1, 8), (1 << 20, 2 << 20), ((1 << 20) + 1, 4 << 20)] {
        let goes = || {
            let buf = Buf::zeroed(len, align).expect("buffer");
            let (first, last) = (buf.as_ptr().addr(), buf.as_ptr().addr() + len - 1);
            assert!(is_mapped(first) && is_mapped(last));
            drop(buf);
            !is_mapped(first) && !is_mapped(last)
        };
        // Another test's thread may map memory there meanwhile, but not each time.
        assert!((0..8).any(|_| goes()), "{len} bytes aligned to {align} are still mapped");
    }
}

#[test]
fn a_buffer_is_made_again_of_its_parts() {
    let mut buf = Buf::zeroed(512, 4096).expect("buffer");
    buf[511] = 7;
    let (ptr, len, align) = buf.into_raw_parts();
    assert_eq!((len, align), (512, 4096));
    // SAFETY: the parts of the buffer above.
    let buf = unsafe { Buf::from_raw_parts(ptr, len, align) };
    assert_eq!(buf[511], 7);
}
