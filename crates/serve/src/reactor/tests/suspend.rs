//! A reactor that resumes after the kernel has ended what waited for the client, and before the reactor has seen that.

use std::sync::mpsc::sync_channel;

use super::*;

impl Bench {
    fn turns(&mut self, many: usize) {
        for _ in 0..many {
            self.reactor.before_wait().expect("nobody ends it");
            self.reactor.wait(1, Some(Duration::ZERO));
            self.reactor.after_wait(None);
        }
    }

    fn suspend_and_resume(&mut self) {
        let ((done, _quiet), now) = (sync_channel(1), Instant::now());
        self.reactor.suspend(done, now);
        self.reactor.cut_off_replies(now);
        self.reactor.before_wait().expect("nobody ends it");
        self.reactor.wait(1, Some(Duration::from_millis(50)));
        self.reactor.resume();
        self.reactor.after_wait(None);
    }
}

#[test]
fn a_receive_whose_end_is_seen_late_begins_again() {
    let Some(mut bench) = Bench::new(1 << 20) else { return };
    for _ in 0..3 {
        bench.suspend_and_resume();
        bench.waits(&request(0, 512), 16 + 512);
    }
}

#[test]
fn a_receive_into_a_payload_whose_end_is_seen_late_begins_again() {
    const LEN: usize = 128 << 10;
    let Some(mut bench) = Bench::new(1 << 20) else { return };
    for part in [1000, 40 << 10, LEN - 1] {
        bench.say(&[request(1, LEN as u32), vec![7; part]].concat());
        bench.turns(20);
        bench.suspend_and_resume();
        bench.waits(&vec![7; LEN - part], 16);
    }
}

#[test]
fn a_send_whose_end_is_seen_late_goes_on() {
    const LEN: usize = 512 << 10;
    let Some(mut bench) = Bench::new(2 << 20) else { return };
    for taken in [0, 100_000, 600_000] {
        bench.say(&request(0, LEN as u32).repeat(3));
        bench.turns(20);
        let mut bytes = vec![0; taken];
        let mut got = 0;
        while got < taken {
            got += std::io::Read::read(&mut bench.client, &mut bytes[got..]).unwrap_or_else(|_| {
                bench.turns(1);
                0
            });
        }
        bench.suspend_and_resume();
        bench.waits(&[], 3 * (16 + LEN) - taken);
    }
}
