//! Methods that set the public fields of a struct to which fields may be added.
//!
//! Other crates cannot construct a `#[non_exhaustive]` struct as a literal, so that a new field breaks none of them.
//! They start with a value instead (`default()`, or a constructor with the mandatory fields) and set the other fields.
//! The macro is on this floor because limits, options and reports of every floor are built in this way.

/// Defines for each field a method of the same name that sets it and returns the struct.
///
/// ```
/// /// How to do it.
/// #[derive(Default)]
/// #[non_exhaustive]
/// pub struct Options {
///     /// More than once.
///     pub times: u32,
///     /// And backwards.
///     pub backwards: bool,
/// }
///
/// sheave_base::setters!(Options { times: u32, backwards: bool });
///
/// let options = Options::default().times(3);
/// assert_eq!((options.times, options.backwards), (3, false));
/// ```
#[macro_export]
macro_rules! setters {
    ($name:ident { $($field:ident: $type:ty),* $(,)? }) => {
        impl $name {
            $(
                #[doc = concat!("With this [`", stringify!($field), "`](#structfield.", stringify!($field), ").")]
                #[inline]
                #[must_use]
                pub fn $field(mut self, $field: $type) -> Self {
                    self.$field = $field;
                    self
                }
            )*
        }
    };
}
