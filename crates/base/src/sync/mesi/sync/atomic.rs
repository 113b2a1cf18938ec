//! Atomics that report each access to the simulated machine, and otherwise are std's.

pub use std::sync::atomic::{Ordering, fence};

use crate::sync::mesi::machine::Access;
use crate::sync::mesi::sched::touch;

/// Std's own type, for system calls.
pub type SystemWord = std::sync::atomic::AtomicU32;

macro_rules! atomic {
    ($name:ident, $of:ty $(, $change:ident)*) => {
        /// Same as std's.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(std::sync::atomic::$name);

        const _: () = assert!(
            size_of::<$name>() == size_of::<std::sync::atomic::$name>()
                && align_of::<$name>() == align_of::<std::sync::atomic::$name>()
        );

        impl $name {
            /// Same as std's.
            #[must_use]
            pub const fn new(value: $of) -> Self {
                Self(std::sync::atomic::$name::new(value))
            }

            #[inline]
            fn told(&self, access: Access) -> &std::sync::atomic::$name {
                touch(std::ptr::from_ref(self) as usize, size_of::<Self>(), access);
                &self.0
            }

            /// Returns std's own atomic, for system calls.
            #[must_use]
            pub fn real(&self) -> &std::sync::atomic::$name {
                &self.0
            }

            /// Same as std's.
            #[inline]
            pub fn load(&self, order: Ordering) -> $of {
                self.told(Access::Read).load(order)
            }

            /// Same as std's.
            #[inline]
            pub fn store(&self, value: $of, order: Ordering) {
                self.told(Access::Write).store(value, order);
            }

            /// Same as std's.
            #[inline]
            pub fn swap(&self, value: $of, order: Ordering) -> $of {
                self.told(Access::Write).swap(value, order)
            }

            /// Same as std's; takes the line exclusively even if it fails.
            ///
            /// # Errors
            /// The value that was found instead.
            #[inline]
            pub fn compare_exchange(&self, now: $of, new: $of, ok: Ordering, err: Ordering) -> Result<$of, $of> {
                self.told(Access::Write).compare_exchange(now, new, ok, err)
            }

            /// Same as std's, except that it never fails spuriously.
            ///
            /// # Errors
            /// The value that was found instead.
            #[inline]
            pub fn compare_exchange_weak(&self, now: $of, new: $of, ok: Ordering, err: Ordering) -> Result<$of, $of> {
                self.compare_exchange(now, new, ok, err)
            }

            /// Same as std's.
            ///
            /// # Errors
            /// The value for which `change` returned `None`.
            #[inline]
            pub fn fetch_update(
                &self,
                ok: Ordering,
                err: Ordering,
                mut change: impl FnMut($of) -> Option<$of>,
            ) -> Result<$of, $of> {
                let mut now = self.load(err);
                while let Some(new) = change(now) {
                    match self.compare_exchange(now, new, ok, err) {
                        Ok(before) => return Ok(before),
                        Err(found) => now = found,
                    }
                }
                Err(now)
            }

            /// Same as std's.
            #[inline]
            pub fn get_mut(&mut self) -> &mut $of {
                self.0.get_mut()
            }

            /// Same as std's.
            #[inline]
            pub fn into_inner(self) -> $of {
                self.0.into_inner()
            }

            $(
                /// Same as std's.
                #[inline]
                pub fn $change(&self, value: $of, order: Ordering) -> $of {
                    self.told(Access::Write).$change(value, order)
                }
            )*
        }

        impl From<$of> for $name {
            fn from(value: $of) -> Self {
                Self::new(value)
            }
        }
    };
}

atomic!(AtomicBool, bool, fetch_and, fetch_or, fetch_xor);
atomic!(AtomicU8, u8, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_xor, fetch_max, fetch_min);
atomic!(AtomicU16, u16, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_xor, fetch_max, fetch_min);
atomic!(AtomicU32, u32, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_xor, fetch_max, fetch_min);
atomic!(AtomicU64, u64, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_xor, fetch_max, fetch_min);
atomic!(AtomicUsize, usize, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_xor, fetch_max, fetch_min);
