//! A reactor that resumes after the kernel has ended what waited for the client, and before the reactor has seen that.

use std::sync::mpsc::sync_channel;

use super::*;

/// Reads that have more data together than the socket takes.
const LEN: usize = 1 << 20;
const MANY: usize = 24;

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
    let Some(mut bench) = Bench::new(8 << 20) else { return };
    for taken in [0, 100_000, 6_000_000] {
        bench.say(&request(0, LEN as u32).repeat(MANY));
        bench.turns(100);
        let mut bytes = vec![0; taken];
        let mut got = 0;
        while got < taken {
            got += std::io::Read::read(&mut bench.client, &mut bytes[got..]).unwrap_or_else(|_| {
                bench.turns(1);
                0
            });
        }
        // The second time, the socket has no room for a byte.
        (0..3).for_each(|_| bench.suspend_and_resume());
        bench.waits(&[], MANY * (16 + LEN) - taken);
    }
}

#[test]
fn large_reads_that_wait_do_not_begin_while_the_reactor_is_suspended() {
    let Some(mut bench) = Bench::new(8 << 20) else { return };
    // The first read shows that the device completes at once.
    bench.waits(&request(0, LEN as u32), 16 + LEN);
    bench.say(&request(0, LEN as u32).repeat(MANY));
    bench.turns(100);
    let waiting = |bench: &Bench| {
        bench.reactor.sessions.iter().flatten().filter_map(Session::conn).map(Conn::waiting_reads).sum::<u32>()
    };
    let before = waiting(&bench);
    assert!(before > 2, "{before} wait");
    let (done, quiet) = sync_channel(1);
    bench.reactor.suspend(done, Instant::now() + Duration::from_secs(60));
    let mut got = 0;
    while quiet.try_recv().is_err() {
        bench.turns(1);
        got += bench.take();
        assert!(got <= MANY * (16 + LEN), "it is not quiet when all replies are sent");
    }
    assert_eq!(waiting(&bench), before);
    got += bench.take();
    bench.reactor.resume();
    bench.waits(&[], MANY * (16 + LEN) - got);
}

#[test]
fn who_is_accepted_while_the_reactor_is_suspended_is_greeted_when_it_resumes() {
    let Some(mut bench) = Bench::new(1 << 20) else { return };
    bench.turns(3);
    let path = bench.client.peer_addr().expect("it has one").as_pathname().expect("a path").to_owned();
    let mut second = UnixStream::connect(path).expect("it answers");
    // The kernel has accepted it when the reactor is suspended.
    bench.reactor.before_wait().expect("nobody ends it");
    bench.reactor.wait(1, Some(Duration::from_secs(1)));
    let (done, quiet) = sync_channel(1);
    bench.reactor.suspend(done, Instant::now() + Duration::from_secs(60));
    bench.reactor.after_wait(None);
    assert_eq!(bench.reactor.arriving.len(), 1);
    (0..1000).for_each(|_| bench.turns(1));
    assert_eq!(quiet.try_recv(), Ok(()), "it keeps nobody from a handover");
    bench.reactor.resume();
    bench.turns(10);
    second.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
    std::io::Read::read_exact(&mut second, &mut [0; 18]).expect("a greeting");
}
