//! Fuzzes the client's side of the NBD protocol: the server's part of the handshake, and its replies.
#![no_main]

use sheave_nbd_client::fuzzing::{Agreed, MAX_ITEM, Mode, Negotiation, What, Wish, next};

/// Largest number of data bytes that an item may announce.
const MAX_DATA: u32 = 32 << 20;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&choice, data)) = data.split_first() else { return };
    let mode = [Mode::Simple, Mode::Structured, Mode::Extended][usize::from(choice) % 3];
    let mut at = 0;
    if choice & 0x80 != 0 {
        let wish = [Wish::Off, Wish::Allow, Wish::Require][usize::from(choice >> 4) % 3];
        let (mut negotiation, mut out) = (Negotiation::new("x", wish, choice & 8 != 0), Vec::new());
        while let Ok((used, agreed)) = negotiation.step(&data[at..], &mut out) {
            at += used;
            assert!(out.len() < 1 << 16);
            if let Some(Agreed::Export(export)) = &agreed {
                assert!(export.size <= i64::MAX as u64 && export.min_block.is_power_of_two());
                assert!(export.preferred_block.is_power_of_two() && export.max_payload >= export.min_block);
            }
            match agreed {
                Some(Agreed::Tls) => negotiation.secured(&mut out),
                None if used > 0 => {}
                _ => return,
            }
        }
        return;
    }
    loop {
        match next(mode, &data[at..]) {
            Ok(Some((used, item))) => {
                assert!(used > 0 && used <= MAX_ITEM);
                at += used;
                match item.what {
                    What::Data(_, len) => {
                        assert!(len > 0 && len <= MAX_DATA);
                        at = (at + len as usize).min(data.len());
                    }
                    What::Zeroes(_, len) => assert!(len > 0),
                    What::Failed(errno) => assert!(errno != 0),
                    What::Simple | What::Nothing => {}
                }
            }
            Ok(None) => {
                assert!(data.len() - at < MAX_ITEM);
                return;
            }
            Err(_) => return,
        }
    }
});
