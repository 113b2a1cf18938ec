//! Memory that operations own.
//!
//! Owns the traits of the types that operations take ([`IoBuf`], [`IoBufMut`]), and [`Memory`], in which a ring keeps a
//! value of any such type. Does not decide when the memory is returned: that is the ring's table of [owned
//! memory](crate::owned).
//!
//! Invariants:
//! - B1: a [`Memory`] is the only owner of the value behind its parts. It turns into that value, or drops it, once.
//! - B2: the parts are of the type whose [`Kind`] is beside them.
#![allow(unsafe_code)] // A value of any type is kept as its address, and made again of it.

use std::any::TypeId;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use sheave_base::buf::Buf;

/// Parts of a value that owns memory, without the value: dropping them frees nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoParts {
    /// First byte of the memory.
    pub ptr: NonNull<u8>,
    /// Number of bytes: all that an operation reads or writes, unless it is given a part.
    pub len: usize,
    /// Anything else that the type needs to be rebuilt, such as a capacity.
    pub extra: usize,
}

/// A value that owns memory from which an operation can write to a device: [`Buf`], `Vec<u8>`, `Box<[u8]>`, or
/// `Arc<[u8]>` to write the same bytes to several places.
///
/// The memory goes to the device as it is; nothing is copied. Only a [`Buf`] always has the alignment that a device may
/// require (a file opened for direct I/O needs addresses aligned to its blocks). With any other memory that is not
/// aligned, the operation fails with `EINVAL`, and [`IoError`](crate::IoError) names the required alignment.
///
/// # Safety
/// From [`IoBuf::into_parts`] to [`IoBuf::from_parts`], however the value or its parts are moved, the `len` bytes from
/// `ptr` on are initialized memory at that address, and nobody writes to them.
pub unsafe trait IoBuf: Sized + Send + 'static {
    /// Takes the value apart, without dropping it.
    fn into_parts(self) -> IoParts;

    /// Rebuilds the value.
    ///
    /// # Safety
    /// [`IoBuf::into_parts`] of this type gave the parts, and no other value was made of them.
    unsafe fn from_parts(parts: IoParts) -> Self;
}

/// A value that owns memory into which an operation can read: [`Buf`], `Vec<u8>` or `Box<[u8]>`. A read fills the
/// length of a `Vec`, not its capacity.
///
/// # Safety
/// The requirements of [`IoBuf`]; and for the same time nobody else reads the bytes.
pub unsafe trait IoBufMut: IoBuf {}

// SAFETY: the memory of a `Buf` is its own, initialized, and stays where it is.
unsafe impl IoBuf for Buf {
    #[inline]
    fn into_parts(self) -> IoParts {
        let (ptr, len, extra) = self.into_raw_parts();
        IoParts { ptr, len, extra }
    }

    #[inline]
    unsafe fn from_parts(parts: IoParts) -> Buf {
        // SAFETY: promised by the caller.
        unsafe { Buf::from_raw_parts(parts.ptr, parts.len, parts.extra) }
    }
}

// SAFETY: a `Buf` has its memory alone.
unsafe impl IoBufMut for Buf {}

// SAFETY: the elements of a `Vec` are its own, initialized, and stay where they are until it is used again.
unsafe impl IoBuf for Vec<u8> {
    #[inline]
    fn into_parts(self) -> IoParts {
        let mut vec = ManuallyDrop::new(self);
        IoParts { ptr: not_null(vec.as_mut_ptr()), len: vec.len(), extra: vec.capacity() }
    }

    #[inline]
    unsafe fn from_parts(parts: IoParts) -> Vec<u8> {
        // SAFETY: the parts of a `Vec<u8>`, as the caller promises.
        unsafe { Vec::from_raw_parts(parts.ptr.as_ptr(), parts.len, parts.extra) }
    }
}

// SAFETY: a `Vec` has its elements alone.
unsafe impl IoBufMut for Vec<u8> {}

// SAFETY: the bytes of a `Box` are its own, initialized, and stay where they are.
unsafe impl IoBuf for Box<[u8]> {
    #[inline]
    fn into_parts(self) -> IoParts {
        let len = self.len();
        IoParts { ptr: not_null(Box::into_raw(self).cast()), len, extra: 0 }
    }

    #[inline]
    unsafe fn from_parts(parts: IoParts) -> Box<[u8]> {
        // SAFETY: the parts of a `Box<[u8]>`, as the caller promises.
        unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(parts.ptr.as_ptr(), parts.len)) }
    }
}

// SAFETY: a `Box` has its bytes alone.
unsafe impl IoBufMut for Box<[u8]> {}

// SAFETY: the bytes of an `Arc` stay where they are while a clone of it exists, and nobody writes to them: the parts
// count as a clone, so `Arc::get_mut` of another clone fails.
unsafe impl IoBuf for Arc<[u8]> {
    #[inline]
    fn into_parts(self) -> IoParts {
        let len = self.len();
        IoParts { ptr: not_null(Arc::into_raw(self).cast::<u8>().cast_mut()), len, extra: 0 }
    }

    #[inline]
    unsafe fn from_parts(parts: IoParts) -> Arc<[u8]> {
        // SAFETY: the parts of an `Arc<[u8]>`, as the caller promises.
        unsafe { Arc::from_raw(std::ptr::slice_from_raw_parts(parts.ptr.as_ptr(), parts.len)) }
    }
}

#[inline(always)]
fn not_null(ptr: *mut u8) -> NonNull<u8> {
    // SAFETY: the address of an allocation, or dangling and aligned, of a type of the standard library that has no
    // null; or of parts, which have none either.
    unsafe { NonNull::new_unchecked(ptr) }
}

/// Address and length, as in `iovec`.
type IoVec = [usize; 2];

/// Buffers of a vectored operation, and the vectors that describe them. Boxed, so that the vectors stay where they are.
#[derive(Debug)]
pub(crate) struct Vectors(Box<(Vec<Buf>, Box<[IoVec]>)>);

impl Vectors {
    pub(crate) fn new(mut bufs: Vec<Buf>) -> Vectors {
        let vecs = bufs.iter_mut().map(|buf| [buf.as_mut_ptr() as usize, buf.len()]).collect();
        Vectors(Box::new((bufs, vecs)))
    }

    pub(crate) fn range(&self) -> (u64, u32) {
        (self.0.1.as_ptr() as u64, self.0.1.len() as u32)
    }

    pub(crate) fn into_bufs(self) -> Vec<Buf> {
        self.0.0
    }
}

// SAFETY: no bytes; the device gets the memory of the buffers, whose vectors stay where they are.
unsafe impl IoBuf for Vectors {
    fn into_parts(self) -> IoParts {
        IoParts { ptr: not_null(Box::into_raw(self.0).cast()), len: 0, extra: 0 }
    }

    unsafe fn from_parts(parts: IoParts) -> Vectors {
        // SAFETY: the address of such a box, as the caller promises.
        Vectors(unsafe { Box::from_raw(parts.ptr.as_ptr().cast()) })
    }
}

/// Type of a value that a ring keeps as its parts.
#[derive(Debug)]
struct Kind {
    id: fn() -> TypeId,
    drop: unsafe fn(IoParts),
}

impl Kind {
    /// Returns true if this is the kind of `B`, possibly at another address: a constant may have several addresses.
    fn is_of<B: IoBuf>(&self) -> bool {
        (self.id)() == TypeId::of::<B>()
    }
}

/// Holds the kind of a type as a constant.
struct KindOf<B>(std::marker::PhantomData<B>);

impl<B: IoBuf> KindOf<B> {
    const KIND: &'static Kind = &Kind { id: TypeId::of::<B>, drop: drop_parts::<B> };
}

/// Drops the value that `parts` came from.
///
/// # Safety
/// The requirements of [`IoBuf::from_parts`].
unsafe fn drop_parts<B: IoBuf>(parts: IoParts) {
    // SAFETY: promised by the caller.
    drop(unsafe { B::from_parts(parts) });
}

/// A value of any type that an operation owns: its kind, and its [`IoParts`].
///
/// The kind is the only field that is never zero, so it is the niche that distinguishes `None` from a value. A
/// comparison of the kind with that of a type therefore tests for both `None` and another type at once.
#[derive(Debug)]
pub(crate) struct Memory {
    kind: &'static Kind,
    ptr: *mut u8,
    len: usize,
    extra: usize,
}

// SAFETY: it owns a value of a type that is `IoBuf`, and so `Send`.
unsafe impl Send for Memory {}

// SAFETY: a shared reference gives access to address and length only, not to the value.
unsafe impl Sync for Memory {}

impl Memory {
    #[inline(always)]
    pub(crate) fn new<B: IoBuf>(value: B) -> Memory {
        let IoParts { ptr, len, extra } = value.into_parts();
        Memory { kind: KindOf::<B>::KIND, ptr: ptr.as_ptr(), len, extra }
    }

    #[inline(always)]
    pub(crate) fn range(&self) -> (u64, usize) {
        (self.ptr as u64, self.len)
    }

    #[inline(always)]
    fn parts(&self) -> IoParts {
        IoParts { ptr: not_null(self.ptr), len: self.len, extra: self.extra }
    }

    /// Returns the value if it is of type `B`. A value of another type is dropped.
    #[inline(always)]
    pub(crate) fn into_value<B: IoBuf>(memory: Option<Memory>) -> Option<B> {
        let kind = memory.as_ref().map(|memory| memory.kind);
        if kind.map_or(std::ptr::null(), std::ptr::from_ref) == std::ptr::from_ref(KindOf::<B>::KIND) {
            // SAFETY: it is of the type.
            return memory.map(|memory| unsafe { memory.into_value_of() });
        }
        // SAFETY: B1, B2; of the type.
        Memory::parts_of_other_kind::<B>(memory).map(|parts| unsafe { B::from_parts(parts) })
    }

    /// Returns the parts of a value of type `B` whose kind is at another address. A value of another type is dropped.
    #[cold]
    #[inline(never)]
    fn parts_of_other_kind<B: IoBuf>(memory: Option<Memory>) -> Option<IoParts> {
        let memory = memory.filter(|memory| memory.kind.is_of::<B>())?;
        Some(ManuallyDrop::new(memory).parts())
    }

    /// Returns the buffers of a vectored operation, or the single buffer of another.
    pub(crate) fn into_bufs(memory: Option<Memory>) -> Vec<Buf> {
        match memory.map(Memory::try_into_value::<Vectors>) {
            None => Vec::new(),
            Some(Ok(vectors)) => vectors.into_bufs(),
            Some(Err(other)) => Memory::into_value(Some(other)).map(|buf: Buf| vec![buf]).unwrap_or_default(),
        }
    }

    /// Returns the value if it is of type `B`.
    pub(crate) fn try_into_value<B: IoBuf>(self) -> Result<B, Memory> {
        if !self.kind.is_of::<B>() {
            return Err(self);
        }
        // SAFETY: it is of the type.
        Ok(unsafe { self.into_value_of() })
    }

    /// # Safety
    /// The memory's kind is that of `B`.
    #[inline(always)]
    unsafe fn into_value_of<B: IoBuf>(self) -> B {
        let parts = ManuallyDrop::new(self).parts();
        // SAFETY: B1, B2; the type is right, as the caller promises.
        unsafe { B::from_parts(parts) }
    }
}

impl Drop for Memory {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: B1, B2.
        unsafe { (self.kind.drop)(self.parts()) }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
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
        // Made at run time, because the compiler may give two equal statics one address. Kept in a static, so that it
        // is no leak.
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
}
