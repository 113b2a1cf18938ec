//! Tokens, and the lists and queues that hold them.

use super::*;

fn list(tags: &[u16]) -> RqList {
    let mut list = RqList::default();
    tags.iter().for_each(|&tag| list.push(tag));
    list
}

fn tags(queue: &mut RqQueue) -> Vec<u16> {
    std::iter::from_fn(|| queue.pop().map(Rq::into_tag)).collect()
}

#[test]
fn a_request_is_one_cache_line() {
    assert_eq!((size_of::<Request>(), align_of::<Request>()), (64, 64));
    assert_eq!(size_of::<Rq>(), 2);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "request with tag 3 dropped without being completed")]
fn a_dropped_token_panics() {
    drop(Rq::new(3));
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "2 requests dropped without being completed")]
fn a_dropped_queue_panics() {
    let mut queue = RqQueue::with_depth(4);
    list(&[1, 2]).take_all(&mut queue);
}

#[test]
fn a_list_is_first_in_first_out_and_takes_back_what_it_gave() {
    let mut list = list(&[5, 6, 7]);
    assert_eq!((list.len(), list.last(), list.tags()), (3, Some(7), &[5, 6, 7][..]));
    let rq = list.pop().unwrap();
    assert_eq!(rq.tag(), 5);
    list.unpop(rq);
    assert_eq!(list.tags(), [5, 6, 7]);
    for tag in 5..8 {
        assert_eq!(list.pop().unwrap().into_tag(), tag);
    }
    assert!(list.pop().is_none() && list.is_empty() && list.last().is_none());
    list.reset();
    list.push(9);
    assert_eq!(list.tags(), [9]);
    list.pop().unwrap().into_tag();
}

#[test]
fn a_list_is_full_at_its_bound() {
    let mut list = RqList::default();
    for tag in 0..PLUG_MAX as u16 {
        assert!(!list.is_full());
        list.push(tag);
    }
    assert!(list.is_full());
    let mut queue = RqQueue::with_depth(64);
    list.take_all(&mut queue);
    assert!(list.is_empty() && !list.is_full());
    assert_eq!(tags(&mut queue), (0..PLUG_MAX as u16).collect::<Vec<_>>());
}

#[test]
fn what_is_put_back_comes_before_all_others() {
    let mut queue = RqQueue::with_depth(8);
    list(&[7, 8]).take_all(&mut queue);
    let mut rest = list(&[1, 2, 3]);
    rest.pop().unwrap().into_tag();
    queue.put_back(&mut rest);
    assert!(rest.is_empty() && rest.tags().is_empty());
    assert_eq!(tags(&mut queue), [2, 3, 7, 8]);
}

#[test]
fn one_can_be_taken_out_of_the_middle() {
    let mut queue = RqQueue::with_depth(8);
    [1, 2, 3].into_iter().for_each(|tag| queue.push(Rq::new(tag)));
    assert_eq!(queue.position(2), Some(1));
    assert_eq!(queue.remove(2).map(Rq::into_tag), Some(2));
    assert!(queue.remove(2).is_none() && queue.position(2).is_none());
    assert_eq!((queue.len(), queue.is_empty()), (2, false));
    assert_eq!(tags(&mut queue), [1, 3]);
}

#[test]
fn completing_all_keeps_the_order_also_around_the_end_of_the_ring() {
    let mut queue = RqQueue::with_depth(3);
    let mut done = DoneList::with_depth(3);
    for first in 0..10_u16 {
        (0..3).for_each(|n| queue.push(Rq::new(first + n)));
        queue.pop().unwrap().into_tag();
        queue.push(Rq::new(first + 3));
        queue.complete_all(&mut done);
        let order: Vec<u16> = done.entries.drain(..).map(|(tag, _)| tag).collect();
        assert_eq!(order, [first + 1, first + 2, first + 3]);
        assert!(queue.is_empty() && done.is_empty());
    }
}
