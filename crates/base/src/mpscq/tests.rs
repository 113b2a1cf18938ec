//! The queue on one thread, and under a real load.
use super::*;
#[test]
fn fifo_and_reuse() {
    let (queue, mut consumer) = MpscQueue::new(3);
    for _ in 0..3 {
        assert_eq!(consumer.pop(), None);
        assert!(queue.is_empty_hint() && consumer.is_empty());
        assert!(queue.push(0));
        assert!(!queue.push(2));
        assert_eq!(consumer.pop(), Some(0));
        assert!(!queue.push(1) && !queue.push(0));
        assert_eq!(consumer.pop(), Some(2));
        assert_eq!(consumer.pop(), Some(1));
        assert!(!consumer.is_empty());
        assert_eq!(consumer.pop(), Some(0));
    }
}
