//! Values of each type turn into parts and back into values, and are dropped once.

use std::any::TypeId;
use std::mem::ManuallyDrop;
use std::sync::{Arc, OnceLock};

use sheave_base::buf::Buf;

use super::{IoBuf, Kind, Memory, Vectors, drop_parts};

fn goes_and_comes<B: IoBuf + Clone + PartialEq + std::fmt::Debug>(value: B, len: usize) {
    let memory = Memory::new(value.clone());
    assert_eq!(memory.range().1, len);
    assert_eq!(Memory::into_value::<B>(Some(memory)).expect("the same type"), value);
}

#[test]
fn every_type_comes_back() {
    let mut with_room = Vec::with_capacity(100);
    with_room.extend(b"abc");
    goes_and_comes(with_room, 3);
    goes_and_comes(Vec::<u8>::new(), 0);
    goes_and_comes(b"abc".to_vec().into_boxed_slice(), 3);
    goes_and_comes(Box::<[u8]>::default(), 0);
    goes_and_comes::<Arc<[u8]>>(Arc::from(*b"abc"), 3);
    let buf = Buf::zeroed(512, 64).expect("memory");
    let address = buf.as_ptr();
    let buf: Buf = Memory::into_value(Some(Memory::new(buf))).expect("the same type");
    assert_eq!((buf.as_ptr(), buf.len(), buf.align()), (address, 512, 64));
}

#[test]
fn a_vec_keeps_its_capacity_which_no_operation_touches() {
    let mut vec: Vec<u8> = Vec::with_capacity(100);
    vec.extend(b"abc");
    let memory = Memory::new(vec);
    assert_eq!(memory.range().1, 3);
    let vec: Vec<u8> = Memory::into_value(Some(memory)).expect("the same type");
    assert!(vec.capacity() >= 100);
    assert_eq!(vec, b"abc");
}

#[test]
fn another_type_does_not_come_back_and_nothing_is_dropped_twice() {
    let shared: Arc<[u8]> = Arc::from(*b"abc");
    let memory = Memory::new(Arc::clone(&shared));
    let memory = memory.try_into_value::<Vec<u8>>().expect_err("it is no Vec");
    assert_eq!(Arc::strong_count(&shared), 2);
    drop(memory);
    assert_eq!(Arc::strong_count(&shared), 1);
    let again: Arc<[u8]> = Memory::new(Arc::clone(&shared)).try_into_value().expect("the same type");
    assert_eq!(Arc::strong_count(&shared), 2);
    drop(again);
    assert_eq!(Arc::strong_count(&shared), 1);
    let memory = Some(Memory::new(Arc::clone(&shared)));
    assert_eq!(Memory::into_value::<Vec<u8>>(memory), None);
    assert_eq!(Arc::strong_count(&shared), 1, "what is of another type is dropped");
    assert_eq!(Memory::into_value::<Arc<[u8]>>(None), None);
}

/// Crates that are compiled separately may have the kind of a type at different addresses.
#[test]
fn a_value_comes_back_when_the_kind_of_its_type_is_at_another_address() {
    // Made at run time, because the compiler may give two equal statics one address. Kept in a static, so that it is no
    // leak.
    static ELSEWHERE: OnceLock<Box<Kind>> = OnceLock::new();
    let kind = || Box::new(Kind { id: TypeId::of::<Vec<u8>>, drop: drop_parts::<Vec<u8>> });
    let elsewhere: &'static Kind = ELSEWHERE.get_or_init(kind);
    let other = |memory: Memory| Memory { kind: elsewhere, ..*ManuallyDrop::new(memory) };
    let memory = other(Memory::new(vec![1, 2]));
    assert_eq!(Memory::into_value::<Vec<u8>>(Some(memory)), Some(vec![1, 2]));
    let memory = other(Memory::new(vec![3]));
    assert_eq!(Memory::into_value::<Box<[u8]>>(Some(memory)), None);
}

/// A program that uses `?` in a function whose error crosses threads needs these bounds of a full SQ.
#[test]
fn completions_and_what_a_full_sq_gives_back_go_between_threads() {
    fn goes_between_threads<T: Send + Sync + 'static>() {}
    goes_between_threads::<crate::Completion>();
    goes_between_threads::<crate::SqFull>();
    goes_between_threads::<crate::SqFull<[crate::prep::Entry; 2]>>();
    goes_between_threads::<crate::RingError>();
}

#[test]
fn vectors_stay_where_they_are() {
    let vectors = Vectors::new(vec![Buf::zeroed(512, 8).expect("memory"), Buf::zeroed(1024, 8).expect("memory")]);
    let (address, count) = vectors.range();
    let vectors: Vectors = Memory::new(vectors).try_into_value().expect("the same type");
    assert_eq!((vectors.range(), count), ((address, 2), 2));
    assert_eq!(vectors.into_bufs().iter().map(|buf| buf.len()).collect::<Vec<_>>(), [512, 1024]);
}
