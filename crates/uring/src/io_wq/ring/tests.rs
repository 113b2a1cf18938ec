//! What a ring does when no thread can be had: a pool that was ended behaves like one.

use crate::Ring;
use crate::prep;

#[test]
fn without_a_thread_the_ring_issues_what_only_wanted_to_be_asynchronous() {
    let mut ring = Ring::builder().entries(8).build().expect("a ring");
    ring.io_wq().pool.shutdown();
    for user_data in 0..4 {
        ring.push(prep::nop().run_async().user_data(user_data)).expect("room");
    }
    ring.submit_and_wait(4).expect("submitted");
    let ended: Vec<_> = ring.completions().map(|c| (c.user_data, c.res)).collect();
    assert_eq!(ended, [(0, 0), (1, 0), (2, 0), (3, 0)]);
    assert_eq!(ring.in_flight(), 0);
}
