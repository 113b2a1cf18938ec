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
        assert_eq!(done.tags(), [first + 1, first + 2, first + 3]);
        done.clear();
        assert!(queue.is_empty() && done.is_empty());
    }
}

#[test]
fn only_what_failed_has_a_status_and_only_while_it_is_in_the_list() {
    let mut done = DoneList::with_depth(8);
    done.succeeded(&[3, 5]);
    assert!(!done.any_failed() && done.status(3).is_ok());
    done.push(Rq::new(4), Status::IoErr);
    done.push(Rq::new(8), Status::Timeout);
    done.push(Rq::new(0), Status::Ok);
    let all = [(3, Status::Ok), (5, Status::Ok), (4, Status::IoErr), (8, Status::Timeout), (0, Status::Ok)];
    assert!(done.iter().eq(all) && done.any_failed());
    // A driver that stacks on another one changes one failure to success, and another to a different failure.
    done.set_status(4, Status::Ok);
    done.set_status(8, Status::Medium);
    assert_eq!((done.status(4), done.status(8), done.any_failed()), (Status::Ok, Status::Medium, true));
    done.clear();
    assert!(done.is_empty() && !done.any_failed());
    // Together with a failed request, because statuses are not read unless one has failed.
    done.succeeded(&[4, 8]);
    done.push(Rq::new(5), Status::IoErr);
    let all = [(4, Status::Ok), (8, Status::Ok), (5, Status::IoErr)];
    assert!(done.iter().eq(all), "nothing is left of their uses before");
    done.clear();
}

#[test]
fn what_is_carried_out_at_once_ends_in_order_with_its_status() {
    let (mut list, mut done) = (RqList::default(), DoneList::with_depth(40));
    (0..32).for_each(|tag| list.push(tag));
    let (_, mut seen) = (list.pop().map(Rq::into_tag), Vec::new());
    list.carry_out_all(&mut done, |rq, behind| {
        assert!(behind.iter().copied().eq(rq.tag() + 1..32), "what comes behind it");
        seen.push(rq.tag());
        if rq.tag() % 7 == 0 { Status::IoErr } else { Status::Ok }
    });
    assert!(list.is_empty() && seen.iter().copied().eq(1..32));
    let expected = (1..32).map(|tag| (tag, if tag % 7 == 0 { Status::IoErr } else { Status::Ok }));
    assert!(done.iter().eq(expected));
    done.clear();
}
