//! Methods that set the public fields of a struct that may get more of them.
//!
//! Other crates cannot write a struct with `#[non_exhaustive]` as a literal, so that a new field breaks none of them.
//! They begin with a value instead (`default()`, or a constructor with what it cannot be without) and set the fields
//! that differ. The macro stands on this floor because limits, options and reports of every floor are made so.

/// For each field a method of its name that sets it and gives the struct back.
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
